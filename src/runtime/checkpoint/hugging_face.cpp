#include "runtime/checkpoint/hugging_face.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/files.hpp"
#include "core/text.hpp"
#include "runtime/checkpoint/json.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

/// Whether a name is a buffer, not a parameter: a checkpoint may lack it, or an older transformers wrote it.
bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.attention.bias") || name.ends_with(".attn.attention.masked_bias") ||
         name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with(".rotary_emb.inv_freq");
}

/// Transposes rows of ours from theirs, or vice versa.
void transpose(const std::vector<float>& from, std::int64_t rows, std::int64_t columns, float* to) {
  constexpr std::int64_t tile = 32;  // source and destination stay in the cache
  for (std::int64_t row0 = 0; row0 < rows; row0 += tile)
    for (std::int64_t column0 = 0; column0 < columns; column0 += tile)
      for (std::int64_t row = row0; row < std::min(rows, row0 + tile); ++row)
        for (std::int64_t column = column0; column < std::min(columns, column0 + tile); ++column)
          to[column * rows + row] = from[static_cast<std::size_t>(row * columns + column)];
}

/// The safetensors files of a folder.
class ForeignFiles {
 public:
  static Result<ForeignFiles> open(const fs::path& folder) {
    ForeignFiles files;
    std::error_code code;
    const fs::path single = folder / "model.safetensors";
    const fs::path index = folder / "model.safetensors.index.json";
    std::set<std::string> names;
    if (fs::exists(single, code)) {
      names.insert(single.filename().string());
    } else if (fs::exists(index, code)) {
      const auto text = read_text_file(index);
      if (!text) return fail(text.error());
      const auto map = parse_weight_map(*text, index.string());
      if (!map) return fail(map.error());
      for (const auto& [tensor, file] : *map) names.insert(file);
    } else {
      return fail(ErrorCode::not_found,
                  fmt::format("'{}' has neither model.safetensors nor model.safetensors.index.json", folder.string()),
                  "name a folder as save_pretrained() writes it (pytorch_model.bin must be converted to safetensors)");
    }
    for (const std::string& name : names) {
      auto file = SafetensorsFile::open(folder / name);
      if (!file) return fail(file.error());
      files.files_.push_back(std::move(*file));
      for (const auto& [tensor, entry] : files.files_.back().tensors())
        if (!files.places_.emplace(tensor, std::pair(files.files_.size() - 1, &entry)).second)
          return fail(ErrorCode::invalid_input,
                      fmt::format("tensor '{}' is in two files of '{}'", valid_utf8(tensor), folder.string()));
    }
    return files;
  }

  /// All names.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, place] : places_) all.push_back(name);
    return all;
  }
  [[nodiscard]] bool has(const std::string& name) const { return places_.contains(name); }
  [[nodiscard]] const SafetensorsEntry& entry(const std::string& name) const { return *places_.at(name).second; }
  [[nodiscard]] Result<std::vector<float>> read(const std::string& name) const {
    const auto& [file, entry] = places_.at(name);
    return files_[file].read(*entry);
  }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<std::size_t, const SafetensorsEntry*>> places_;
};

/// The name under which a file has a tensor: models are also saved without the head, and then without the first part of
/// each name.
std::optional<std::string> name_in(const ForeignFiles& files, const std::string& name) {
  if (files.has(name)) return name;
  const std::string shorter = name.substr(name.find('.') + 1);
  if (files.has(shorter)) return shorter;
  return std::nullopt;
}

}  // namespace

Result<std::map<std::string, std::string>> parse_weight_map(std::string_view text, std::string_view source_name) {
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' {}", source_name, what),
                "it must be the index that transformers writes beside several .safetensors files");
  };
  const auto root = parse_foreign_json(text);
  if (!root || !root->is_object() || !root->contains("weight_map") || !(*root)["weight_map"].is_object())
    return refuse("has no weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : (*root)["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : std::string();
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos || !name.ends_with(".safetensors"))
      return refuse(fmt::format("says that tensor '{}' is in '{}', which is no .safetensors file of the folder",
                                valid_utf8(tensor), valid_utf8(name)));
    files[tensor] = name;
  }
  return files;
}

Result<void> export_hugging_face(CheckpointReader& checkpoint, const Model& model, const fs::path& folder) {
  SAILOR_CHECK(checkpoint.check_model(model));
  const auto foreign = foreign_tensors(model);
  if (!foreign) return fail(foreign.error());
  const auto config = config_text(model);
  if (!config) return fail(config.error());
  SAILOR_CHECK(create_folders(folder));
  std::error_code code;
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(fs::symlink_status(folder / name, code)))
      return fail(ErrorCode::io, fmt::format("'{}' is there already", (folder / name).string()),
                  "name a folder without a model");
  std::vector<NamedShape> shapes;
  for (const ForeignTensor& tensor : *foreign) shapes.push_back({tensor.name, tensor.shape});
  const auto values = [&](std::size_t index) -> Result<std::vector<float>> {
    const ForeignTensor& tensor = (*foreign)[index];
    const StoredTensor* stored = checkpoint.manifest().find(tensor.layer, tensor.own_name);
    const Range elements{tensor.rows.first * tensor.width, tensor.rows.last * tensor.width};
    if (stored == nullptr || stored->elements() < elements.last)
      return fail(ErrorCode::invalid_input,
                  fmt::format("the checkpoint has no layer {}, {}", tensor.layer, tensor.own_name));
    std::vector<float> data(static_cast<std::size_t>(tensor.rows_before * tensor.width + elements.size()));
    float* const start = data.data() + tensor.rows_before * tensor.width;
    if (!tensor.transposed) {
      SAILOR_CHECK(checkpoint.read(*stored, StoredArray::value, elements, start));
      return data;
    }
    std::vector<float> own(static_cast<std::size_t>(elements.size()));
    SAILOR_CHECK(checkpoint.read(*stored, StoredArray::value, elements, own.data()));
    transpose(own, tensor.rows.size(), tensor.width, start);
    return data;
  };
  SAILOR_CHECK(write_safetensors(folder / "model.safetensors", shapes, values));
  return write_file_atomically(folder / "config.json", *config);
}

Result<void> import_hugging_face(const fs::path& folder, const Model& model, const fs::path& checkpoint) {
  SAILOR_CHECK(check_supported(model));
  const auto foreign = foreign_tensors(model);
  if (!foreign) return fail(foreign.error());
  const auto config = read_text_file(folder / "config.json");
  if (!config) return fail(config.error());
  SAILOR_CHECK(check_config(*config, (folder / "config.json").string(), model));
  const auto files = ForeignFiles::open(folder);
  if (!files) return fail(files.error());

  std::set<std::string> used;
  std::multimap<std::pair<int, std::string>, std::pair<const ForeignTensor*, std::string>> parts;  // by tensor of ours
  std::string embedding;
  for (const ForeignTensor& tensor : *foreign) {
    const auto name = name_in(*files, tensor.name);
    if (!name)
      return fail(ErrorCode::invalid_input, fmt::format("'{}' has no tensor '{}', which model '{}' needs",
                                                        folder.string(), tensor.name, model.name));
    if (const Shape& shape = files->entry(*name).shape; shape != tensor.shape)
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}': tensor '{}' has shape ({}), but model '{}' needs ({})", folder.string(), *name,
                              join(shape, ", "), model.name, join(tensor.shape, ", ")));
    used.insert(*name);
    if (tensor.layer == 0 && tensor.own_name == token_embedding_name) embedding = *name;
    parts.emplace(std::pair(tensor.layer, tensor.own_name), std::pair(&tensor, *name));
  }
  for (const std::string& name : files->names()) {
    if (used.contains(name) || is_buffer(name)) continue;
    if (name == "lm_head.weight" && model.tied_embedding) {
      const auto head = files->read(name);
      if (!head) return fail(head.error());
      const auto table = files->read(embedding);
      if (!table) return fail(table.error());
      if (*head == *table) continue;
      return fail(ErrorCode::invalid_input,
                  fmt::format("'{}': lm_head.weight is not {}, but model '{}' ties the two", folder.string(), embedding,
                              model.name),
                  "use a model with tied_embedding = false");
    }
    return fail(
        ErrorCode::invalid_input,
        fmt::format("'{}' has tensor '{}', which model '{}' does not", folder.string(), valid_utf8(name), model.name),
        "without it the model would be another one");
  }

  const auto values = [&](const WholeTensor& own) -> Result<std::vector<float>> {
    std::vector<float> data(static_cast<std::size_t>(element_count(own.shape)));
    const auto [begin, end] = parts.equal_range({own.layer, own.name});
    std::int64_t rows = 0;
    for (auto part = begin; part != end; ++part) {
      const auto& [tensor, name] = part->second;
      auto read = files->read(name);
      if (!read) return fail(read.error());
      float* const to = data.data() + tensor->rows.first * tensor->width;
      if (tensor->transposed)
        transpose(*read, tensor->width, tensor->rows.size(), to);
      else
        std::copy(read->begin() + tensor->rows_before * tensor->width, read->end(), to);
      rows += tensor->rows.size();
    }
    if (rows != own.shape.front())
      return fail(ErrorCode::failure, fmt::format("layer {}, {}: no tensor has all of it", own.layer, own.name));
    return data;
  };
  return write_imported_checkpoint(checkpoint, model, fmt::format("imported from {}", folder.string()),
                                   whole_tensors(model), values);
}

}  // namespace sailor::runtime
