#include "runtime/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <tuple>

#include "core/text.hpp"
#include "runtime/checkpoint/checksum.hpp"
#include "runtime/checkpoint/json.hpp"

namespace sailor::runtime {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view manifest_format = "sailor-checkpoint";
constexpr std::string_view seal_key = ",\n\"checksum\": \"";
constexpr std::string_view seal_end = "\"\n}\n";
constexpr std::size_t checksum_digits = 16;
constexpr std::int64_t most_elements = std::int64_t{1} << 56;
// Together these two limits keep sums of bytes within 64 bits.
constexpr std::int64_t largest_file = std::int64_t{1} << 46;
constexpr std::size_t most_files = std::size_t{1} << 16;

std::optional<std::uint64_t> parse_checksum(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != checksum_digits || problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (std::any_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'F'; })) return std::nullopt;
  return value;
}

/// The only accepted kind of file name: no manifest leads out of its folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '.';
         });
}

/// Reads untrusted JSON; the first error is kept, and everything after it reads as empty.
class Reader {
 public:
  explicit Reader(std::string_view source) : source_(source) {}

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] tl::unexpected<Error> error() const {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' is damaged: {}", source_, what_),
                "use another checkpoint: sailor-checkpoint list shows those of a folder");
  }
  void refuse(std::string what) {
    if (!failed_) what_ = std::move(what);
    failed_ = true;
  }

  const Json& at(const Json& object, const char* key) {
    static const Json nothing;
    if (failed_) return nothing;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || found == object.end()) {
      refuse(fmt::format("key '{}' is missing", key));
      return nothing;
    }
    return *found;
  }
  std::int64_t integer(const Json& value, std::string_view what, std::int64_t smallest, std::int64_t largest) {
    if (failed_) return 0;
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(largest)
                                                 : value.is_number_integer();
    const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
    if (fits && number >= smallest && number <= largest) return number;
    refuse(fmt::format("{} must be an integer from {} to {}", what, smallest, largest));
    return 0;
  }
  std::string text(const Json& value, std::string_view what, std::size_t longest = 4096) {
    if (failed_) return {};
    if (value.is_string() && value.get_ref<const std::string&>().size() <= longest) return value.get<std::string>();
    refuse(fmt::format("{} must be a text of up to {} bytes", what, longest));
    return {};
  }
  std::uint64_t checksum(const Json& value, std::string_view what) {
    const std::string digits = text(value, what);
    const auto parsed = parse_checksum(digits);
    if (!failed_ && !parsed) refuse(fmt::format("{} must have 16 hexadecimal digits", what));
    return parsed.value_or(0);
  }
  const Json& array(const Json& value, std::string_view what) {
    static const Json nothing = Json::array();
    if (failed_) return nothing;
    if (value.is_array()) return value;
    refuse(fmt::format("{} must be an array", what));
    return nothing;
  }
  std::map<std::string, std::string> texts(const Json& value, std::string_view what) {
    std::map<std::string, std::string> entries;
    if (!failed_ && !value.is_object()) refuse(fmt::format("{} must be an object", what));
    if (failed_) return entries;
    for (const auto& [key, entry] : value.items()) entries[key] = text(entry, fmt::format("{}.{}", what, key));
    return entries;
  }

 private:
  std::string_view source_;
  std::string what_;
  bool failed_ = false;
};

LossScale read_loss_scale(Reader& reader, const Json& object) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  LossScale scale;
  const Json& factor = reader.at(object, "factor");
  if (!reader.failed() && (!factor.is_number() || !(factor.get<double>() > 0.0)))
    reader.refuse("loss_scale.factor must be a positive number");
  if (!reader.failed()) scale.factor = factor.get<double>();
  scale.good = reader.integer(reader.at(object, "good"), "loss_scale.good", 0, most);
  scale.skipped = reader.integer(reader.at(object, "skipped"), "loss_scale.skipped", 0, most);
  return scale;
}

std::vector<StoredPiece> read_pieces(Reader& reader, const Json& rows, std::string_view what) {
  std::vector<StoredPiece> pieces;
  for (const Json& row : reader.array(rows, what)) {
    if (!row.is_array() || row.size() != 5) reader.refuse(fmt::format("{}: a piece must have five fields", what));
    if (reader.failed()) return {};
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    pieces.push_back({.first = reader.integer(row[0], what, 0, most_elements),
                      .count = reader.integer(row[1], what, 1, largest_piece),
                      .file = static_cast<std::size_t>(reader.integer(row[2], what, 0, 1 << 30)),
                      .offset = reader.integer(row[3], what, 0, most),
                      .checksum = reader.checksum(row[4], what)});
  }
  return pieces;
}

Json pieces_json(const std::vector<StoredPiece>& pieces) {
  Json rows = Json::array();
  for (const StoredPiece& piece : pieces)
    rows.push_back({piece.first, piece.count, piece.file, piece.offset, fmt::format("{:016x}", piece.checksum)});
  return rows;
}

Result<void> check_shape(const StoredTensor& tensor) {
  std::int64_t elements = 1;
  if (tensor.shape.empty() || tensor.shape.size() > 8)
    return fail(ErrorCode::invalid_input, fmt::format("layer {}, {}: bad shape", tensor.layer, tensor.name));
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 1 || extent > most_elements / elements)
      return fail(ErrorCode::invalid_input, fmt::format("layer {}, {}: bad shape", tensor.layer, tensor.name));
    elements *= extent;
  }
  return {};
}

}  // namespace

Architecture architecture_of(const Model& model) {
  constexpr std::array norms{"layer_norm", "rms_norm"};
  constexpr std::array placements{"pre", "post"};
  constexpr std::array final_norms{"none", "in_head", "separate", "separate_and_in_head"};
  constexpr std::array activations{"relu", "gelu", "swiglu"};
  constexpr std::array positions{"learned", "rotary"};
  const auto name = [](const auto& names, auto value) { return std::string(names[static_cast<std::size_t>(value)]); };
  Architecture architecture{
      {"blocks", fmt::to_string(model.blocks)},
      {"hidden", fmt::to_string(model.hidden)},
      {"embedding_width", fmt::to_string(model.embedding_width)},
      {"attention_heads", fmt::to_string(model.attention_heads)},
      {"key_value_heads", fmt::to_string(model.key_value_heads)},
      {"feed_forward", fmt::to_string(model.feed_forward)},
      {"vocabulary", fmt::to_string(model.vocabulary)},
      {"max_sequence_length", fmt::to_string(model.max_sequence_length)},
      {"norm", name(norms, model.norm)},
      {"norm_placement", name(placements, model.norm_placement)},
      {"final_norm", name(final_norms, model.final_norm)},
      {"activation", name(activations, model.activation)},
      {"position", name(positions, model.position)},
      {"norm_epsilon", fmt::to_string(model.norm_epsilon)},
      {"rotary_base", model.position == PositionKind::rotary ? fmt::to_string(model.rotary_base) : "none"},
      {"linear_bias", fmt::to_string(model.linear_bias)},
      {"attention_input_bias", fmt::to_string(model.attention_input_bias)},
      {"attention_output_bias", fmt::to_string(model.attention_output_bias)},
      {"tied_embedding", fmt::to_string(model.tied_embedding)},
      {"scale_attention", fmt::to_string(model.scale_attention)},
      {"local_attention_window", fmt::to_string(model.local_attention_window)}};
  if (const Experts& experts = model.experts; experts.count > 0) {
    architecture["experts.count"] = fmt::to_string(experts.count);
    architecture["experts.per_token"] = fmt::to_string(experts.per_token);
    architecture["experts.feed_forward"] = fmt::to_string(experts.feed_forward);
    architecture["experts.shared_feed_forward"] = fmt::to_string(experts.shared_feed_forward);
    architecture["experts.first_dense"] = fmt::to_string(experts.first_dense);
    architecture["experts.period"] = fmt::to_string(experts.period);
  }
  return architecture;
}

std::string difference(const Architecture& in_checkpoint, const Architecture& in_model) {
  constexpr std::size_t most = 3;
  std::vector<std::string> found;
  std::size_t differences = 0;
  const auto note = [&](const std::string& key, const std::string& one, const std::string& other) {
    if (++differences <= most)
      found.push_back(fmt::format("{} is {} in the checkpoint and {} in the model", key, one, other));
  };
  for (const auto& [key, value] : in_model) {
    const auto stored = in_checkpoint.find(key);
    if (stored == in_checkpoint.end())
      note(key, "not known", value);
    else if (stored->second != value)
      note(key, stored->second, value);
  }
  for (const auto& [key, value] : in_checkpoint)
    if (!in_model.contains(key)) note(key, value, "not known");
  if (differences > most) found.push_back(fmt::format("{} more", differences - most));
  return join(found, ", ");
}

const StoredTensor* Manifest::find(int layer, std::string_view name) const {
  const auto key = std::pair(layer, name);
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), key, [](const StoredTensor& tensor, auto& other) {
    return std::pair(tensor.layer, std::string_view(tensor.name)) < other;
  });
  if (found == tensors.end() || found->layer != layer || found->name != name) return nullptr;
  return &*found;
}

std::int64_t Manifest::bytes() const {
  std::int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

Result<void> complete_manifest(Manifest& manifest) {
  const auto refuse = [](const StoredTensor& tensor, std::string_view what) {
    return fail(ErrorCode::invalid_input, fmt::format("layer {}, {}: {}", tensor.layer, tensor.name, what));
  };
  std::sort(manifest.tensors.begin(), manifest.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.layer, a.name) < std::tie(b.layer, b.name);
  });
  const StoredTensor* before = nullptr;
  for (StoredTensor& tensor : manifest.tensors) {
    if (before != nullptr && before->layer == tensor.layer && before->name == tensor.name)
      return refuse(tensor, "is there twice");
    before = &tensor;
    SAILOR_CHECK(check_shape(tensor));
    for (const StoredArray array : stored_arrays) {
      std::vector<StoredPiece>& pieces = tensor.of(array);
      if (pieces.empty() && array != StoredArray::value) continue;  // zeros
      std::sort(pieces.begin(), pieces.end(),
                [](const StoredPiece& a, const StoredPiece& b) { return a.first < b.first; });
      std::int64_t end = 0;
      for (const StoredPiece& piece : pieces) {
        if (piece.first != end)
          return refuse(tensor, fmt::format("elements from {} on of its {} are {}", std::min(end, piece.first),
                                            to_string(array), piece.first < end ? "there twice" : "missing"));
        if (piece.count < 1 || piece.count > largest_piece || piece.file >= manifest.files.size() || piece.offset < 0 ||
            piece.bytes() > manifest.files[piece.file].bytes ||
            piece.offset > manifest.files[piece.file].bytes - piece.bytes())
          return refuse(tensor,
                        fmt::format("elements from {} on of its {} do not lie in a file", end, to_string(array)));
        end += piece.count;
      }
      if (end != tensor.elements())
        return refuse(tensor, fmt::format("has {} elements of its {} in pieces, but {} by its shape", end,
                                          to_string(array), tensor.elements()));
    }
  }
  return {};
}

std::string seal_manifest(std::string body) {
  const auto trim = [&] { body.erase(body.find_last_not_of(" \n") + 1); };
  trim();
  if (body.ends_with('}')) body.pop_back();
  trim();
  const std::string digits = checksum_text(body.data(), body.size());
  return body.append(seal_key).append(digits).append(seal_end);
}

std::string manifest_text(const Manifest& manifest) {
  Json root;
  root["format"] = manifest_format;
  root["schema_version"] = checkpoint_schema_version;
  root["sequence"] = manifest.sequence;
  root["iteration"] = manifest.iteration;
  root["model"] = valid_utf8(manifest.model);
  root["architecture"] = manifest.architecture;
  root["training"] = nullptr;
  if (manifest.training) {
    const TrainingFacts& facts = *manifest.training;
    Json settings = Json::object();
    for (const auto& [key, value] : facts.settings) settings[valid_utf8(key)] = valid_utf8(value);
    root["training"] = {{"seed", facts.seed},
                        {"sequence_length", facts.sequence_length},
                        {"global_batch", facts.global_batch},
                        {"data", valid_utf8(facts.data)},
                        {"settings", std::move(settings)}};
    if (facts.loss_scale)
      root["training"]["loss_scale"] = {{"factor", facts.loss_scale->factor},
                                        {"good", facts.loss_scale->good},
                                        {"skipped", facts.loss_scale->skipped}};
  }
  root["source"] = valid_utf8(manifest.source);
  if (manifest.write_time_s) root["write_time_s"] = *manifest.write_time_s;
  root["element_type"] = "float32";
  root["files"] = Json::array();
  for (const StoredFile& file : manifest.files) {
    Json entry{{"name", file.name}, {"bytes", file.bytes}};
    if (file.checksum) entry["checksum"] = fmt::format("{:016x}", *file.checksum);
    root["files"].push_back(std::move(entry));
  }
  // One line per tensor: readable, without wasted bytes.
  std::string text = root.dump(1);
  text.erase(text.find_last_not_of("}\n") + 1);
  text += ",\n \"tensors\": [";
  const char* separator = "\n";
  for (const StoredTensor& tensor : manifest.tensors) {
    Json entry{{"layer", tensor.layer}, {"name", tensor.name}, {"shape", tensor.shape}};
    for (const StoredArray array : stored_arrays) entry[std::string(to_string(array))] = pieces_json(tensor.of(array));
    text += separator + ("  " + entry.dump());
    separator = ",\n";
  }
  return seal_manifest(text + "\n ]}");
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view source_name) {
  const auto refuse = [&](const std::string& what) {
    return fail(ErrorCode::invalid_input, fmt::format("'{}' {}", source_name, what),
                "use another checkpoint: sailor-checkpoint list shows those of a folder");
  };
  // The seal is checked first: what follows then reads only what was written.
  const std::size_t seal_bytes = seal_key.size() + checksum_digits + seal_end.size();
  const std::size_t body = text.size() < seal_bytes ? 0 : text.size() - seal_bytes;
  const auto sealed =
      text.size() < seal_bytes ? std::nullopt : parse_checksum(text.substr(body + seal_key.size(), checksum_digits));
  if (!sealed || text.substr(body, seal_key.size()) != seal_key || !text.ends_with(seal_end)) {
    const bool ours = text.substr(0, 256).find(manifest_format) != std::string_view::npos;
    return refuse(ours ? "is truncated or damaged: it does not end with its checksum"
                       : "is no manifest of a Sailor checkpoint");
  }
  if (checksum(text.data(), body) != *sealed) return refuse("is damaged: its checksum does not match");

  const std::optional<Json> parsed = parse_foreign_json(text);
  if (!parsed || !parsed->is_object() || parsed->value("format", Json()) != manifest_format)
    return refuse("is no manifest of a Sailor checkpoint");
  const Json& root = *parsed;
  Reader reader(source_name);
  const std::int64_t version = reader.integer(reader.at(root, "schema_version"), "schema_version", 1, 1 << 30);
  if (reader.failed()) return reader.error();
  if (version > checkpoint_schema_version)
    return fail(ErrorCode::invalid_input,
                fmt::format("'{}' has schema_version {}, but this Sailor knows versions up to {}", source_name, version,
                            checkpoint_schema_version),
                "use the newer Sailor that wrote it");

  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Manifest manifest;
  manifest.sequence = reader.integer(reader.at(root, "sequence"), "sequence", 0, most - 1);
  manifest.iteration = reader.integer(reader.at(root, "iteration"), "iteration", 0, most);
  manifest.model = reader.text(reader.at(root, "model"), "model");
  manifest.architecture = reader.texts(reader.at(root, "architecture"), "architecture");
  manifest.source = reader.text(reader.at(root, "source"), "source");
  if (const auto time = root.find("write_time_s"); time != root.end() && time->is_number())
    manifest.write_time_s = time->get<double>();
  if (const Json& training = reader.at(root, "training"); !reader.failed() && !training.is_null()) {
    TrainingFacts& facts = manifest.training.emplace();
    const Json& seed = reader.at(training, "seed");
    if (!reader.failed() && !seed.is_number_unsigned()) reader.refuse("seed must be an integer from 0 on");
    if (!reader.failed()) facts.seed = seed.get<std::uint64_t>();
    facts.sequence_length = reader.integer(reader.at(training, "sequence_length"), "sequence_length", 0, most);
    facts.global_batch = reader.integer(reader.at(training, "global_batch"), "global_batch", 0, most);
    facts.data = reader.text(reader.at(training, "data"), "data");
    facts.settings = reader.texts(reader.at(training, "settings"), "settings");
    if (!reader.failed() && training.contains("loss_scale"))
      facts.loss_scale = read_loss_scale(reader, training["loss_scale"]);
  }
  if (const std::string type = reader.text(reader.at(root, "element_type"), "element_type");
      !reader.failed() && type != "float32")
    reader.refuse(fmt::format("element_type '{}' is not known", type));
  for (const Json& entry : reader.array(reader.at(root, "files"), "files")) {
    StoredFile file{.name = reader.text(reader.at(entry, "name"), "a file's name"),
                    .bytes = reader.integer(reader.at(entry, "bytes"), "a file's bytes", 0, largest_file)};
    if (reader.failed()) break;
    if (entry.contains("checksum")) file.checksum = reader.checksum(entry["checksum"], "a file's checksum");
    if (!is_plain_name(file.name)) reader.refuse(fmt::format("'{}' is no name of a file", valid_utf8(file.name)));
    if (manifest.files.size() == most_files) reader.refuse("it has too many files");
    manifest.files.push_back(std::move(file));
  }
  for (const Json& entry : reader.array(reader.at(root, "tensors"), "tensors")) {
    StoredTensor tensor;
    tensor.layer = static_cast<int>(reader.integer(reader.at(entry, "layer"), "layer", 0, 1 << 24));
    tensor.name = reader.text(reader.at(entry, "name"), "a tensor's name", 256);
    for (const Json& extent : reader.array(reader.at(entry, "shape"), "shape"))
      tensor.shape.push_back(reader.integer(extent, "an extent", 1, most_elements));
    for (const StoredArray array : stored_arrays) {
      const std::string key(to_string(array));
      tensor.of(array) = read_pieces(reader, reader.at(entry, key.c_str()), key);
    }
    if (reader.failed()) break;
    manifest.tensors.push_back(std::move(tensor));
  }
  if (reader.failed()) return reader.error();
  if (auto complete = complete_manifest(manifest); !complete) return refuse("is damaged: " + complete.error().what);
  return manifest;
}

}  // namespace sailor::runtime
