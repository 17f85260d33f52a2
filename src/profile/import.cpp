#include "profile/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "core/text.hpp"
#include "profile/table.hpp"
#include "profile/text.hpp"

namespace sailor {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> form_names{"text",       "layer-times", "layer-memory",
                                                     "inter-node", "intra-node",  "homogeneous"};
// The sizes that the published curves were fitted to (profiling/networking of that repository).
constexpr Bytes smallest_fitted_message{65536.0};
constexpr Bytes largest_fitted_message{1073741824.0};

/// The keys from the root to a value, for messages: "OPT-350 > A100-40 > 4".
using Path = std::vector<std::string>;

tl::unexpected<Error> invalid(std::string_view file, const Path& path, const std::string& what) {
  return fail(ErrorCode::invalid_input,
              fmt::format("{}: {}{}{}", file, join(path, " > "), path.empty() ? "" : ": ", what));
}

/// "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the part in brackets.
std::string reason_of(const std::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return valid_utf8(end == std::string::npos ? text : text.substr(end + 2));
}

Result<Json> parse_json(std::string_view content, std::string_view file) {
  std::vector<std::set<std::string>> keys;  // keys of the open objects
  std::string repeated;
  auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty() && !keys.back().insert(value.get<std::string>()).second)
      repeated = value.get<std::string>();
    return true;
  };
  try {
    Json root = Json::parse(content.begin(), content.end(), watch);
    if (!repeated.empty()) return invalid(file, {}, fmt::format("the key '{}' stands twice in one object", repeated));
    return root;
  } catch (const Json::exception& error) {
    return invalid(file, {}, reason_of(error));
  }
}

Result<int> parse_count(std::string_view file, const Path& path, const std::string& text, const char* what,
                        int smallest) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < smallest)
    return invalid(file, path, fmt::format("'{}' is no {}", text, what));
  return value;
}

Result<double> read_number(std::string_view file, const Path& path, const Json& value, const char* what,
                           bool may_be_negative = false) {
  if (!value.is_number()) return invalid(file, path, fmt::format("{} must be a number", what));
  const double number = value.get<double>();
  if (may_be_negative && std::isfinite(number)) return number;
  if (const auto problem = hdf5::problem_with_amount(number))
    return invalid(file, path, fmt::format("{}: {}", what, *problem));
  return number;
}

/// Calls visit(path, value) for the values below `depth` levels of objects.
Result<void> visit_entries(std::string_view file, const Json& value, std::size_t depth, Path& path,
                           const std::function<Result<void>(const Path&, const Json&)>& visit) {
  if (path.size() == depth) return visit(path, value);
  if (!value.is_object() || value.empty()) return invalid(file, path, "an object with entries is missing");
  for (const auto& [key, entry] : value.items()) {
    path.push_back(key);
    SAILOR_CHECK(visit_entries(file, entry, depth, path, visit));
    path.pop_back();
  }
  return {};
}

Result<void> visit_entries(std::string_view file, const Json& root, std::size_t depth,
                           const std::function<Result<void>(const Path&, const Json&)>& visit) {
  Path path;
  return visit_entries(file, root, depth, path, visit);
}

/// Follows the first key of each level down to the first value that is no object.
struct Shape {
  int depth = 0;
  Path first_keys{};
  const Json* leaf = nullptr;
};
Shape shape_of(const Json& root) {
  Shape shape{.leaf = &root};
  constexpr int deepest = 16;
  while (shape.leaf->is_object() && !shape.leaf->empty() && shape.depth < deepest) {
    shape.first_keys.push_back(shape.leaf->begin().key());
    shape.leaf = &shape.leaf->begin().value();
    ++shape.depth;
  }
  return shape;
}

bool is_curve(const Json& value) { return value.is_array() && value.size() == 2 && value.front().is_array(); }

Result<ImportForm> recognise(const Json& root, std::string_view file) {
  const Shape shape = shape_of(root);
  const bool times = shape.leaf->is_array() && !is_curve(*shape.leaf);
  if (times && (shape.depth == 5 || shape.depth == 3)) return ImportForm::layer_times;
  if (shape.leaf->is_number() && shape.depth == 4) return ImportForm::layer_memory;
  if (is_curve(*shape.leaf)) {
    if (shape.depth == 6) return ImportForm::inter_node;
    if (shape.depth == 2) return ImportForm::intra_node;
    if (shape.depth == 3 && (shape.first_keys.front() == "inter" || shape.first_keys.front() == "intra"))
      return ImportForm::homogeneous;
  }
  std::vector<std::string_view> known(form_names.begin(), form_names.end());
  return fail(ErrorCode::invalid_input, fmt::format("{}: this JSON has the form of no file that can be imported", file),
              fmt::format("see \"Published figures\" in profiles/README.md, or name its form with --from ({})",
                          join(known, ", ")));
}

class Importer {
 public:
  Importer(std::string_view file, const ImportOptions& options) : file_(file), options_(options) {
    data_.sessions.push_back(options.session);
  }

  Result<ProfileData> read(const Json& root, ImportForm form) {
    switch (form) {
      case ImportForm::layer_times:
        SAILOR_CHECK(read_layer_times(root));
        break;
      case ImportForm::layer_memory:
        SAILOR_CHECK(read_layer_memory(root));
        break;
      case ImportForm::inter_node:
        SAILOR_CHECK(read_inter_node(root));
        break;
      case ImportForm::intra_node:
        SAILOR_CHECK(read_inside_a_node(root));
        break;
      case ImportForm::homogeneous:
        SAILOR_CHECK(read_homogeneous(root));
        break;
      case ImportForm::text:
        return fail(ErrorCode::usage, fmt::format("{}: this is JSON, not the text form of a store", file_));
    }
    auto by_key = [](const auto& a, const auto& b) { return a.key < b.key; };
    std::stable_sort(data_.layer_times.begin(), data_.layer_times.end(), by_key);
    std::stable_sort(data_.layer_memory.begin(), data_.layer_memory.end(), by_key);
    gather_equal_curves();
    return std::move(data_);
  }

 private:
  Result<Model> model(const std::string& name) const {
    std::vector<std::string> known;
    for (const Model& candidate : options_.models) {
      const bool alias = std::any_of(candidate.aliases.begin(), candidate.aliases.end(),
                                     [&](const std::string& other) { return equal_ignoring_case(other, name); });
      if (alias || equal_ignoring_case(candidate.name, name)) return candidate;
      known.push_back(candidate.name);
    }
    return fail(
        ErrorCode::not_found, fmt::format("{}: model '{}' is not known", file_, name),
        fmt::format("describe it in a file of the --models folder, or name it there in the aliases of one of: {}",
                    join(known, ", ")));
  }

  Result<std::string> gpu(const std::string& name) const {
    const auto found = options_.gpus.find(name);
    if (!found) {
      Error error = found.error();
      error.hint = fmt::format("{}{}describe it in the --gpus file, or add this name to the aliases of one", error.hint,
                               error.hint.empty() ? "" : "; ");
      return fail(std::move(error), file_);
    }
    return found->name;
  }

  /// The values of layers 0, 1, ... of one model, in order.
  Result<std::vector<const Json*>> layers(const Path& path, const Json& object, const Model& of) const {
    if (!object.is_object()) return invalid(file_, path, "an object of layers is missing");
    std::vector<const Json*> values(static_cast<std::size_t>(of.layers()), nullptr);
    for (const auto& [key, value] : object.items()) {
      const auto index = parse_count(file_, path, key, "index of a layer", 0);
      if (!index) return fail(index.error());
      if (*index >= of.layers())
        return invalid(file_, path,
                       fmt::format("layer {} is there but {} has {} layers", *index, of.name, of.layers()));
      values[static_cast<std::size_t>(*index)] = &value;
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      if (values[i] == nullptr)
        return invalid(file_, path, fmt::format("layer {} is missing: {} has {} layers", i, of.name, of.layers()));
    return values;
  }

  /// Adds the rows of a model's layers; neighbours of one kind with the same content share one.
  template <class Row>
  static void add_folded(std::vector<Row>& rows, const Model& of, std::vector<Row> layers) {
    const Row* last = nullptr;
    std::vector<Row> folded;
    folded.reserve(layers.size());
    for (int i = 0; i < of.layers(); ++i) {
      Row& layer = layers[static_cast<std::size_t>(i)];
      layer.key.kind = of.layer_kind(i);
      const bool first_of_kind = i == 0 || of.layer_kind(i - 1) != layer.key.kind;
      if (!first_of_kind) {
        layer.key.first_layer = last->key.first_layer;
        if (layer == *last) continue;
      }
      layer.key.first_layer = first_of_kind ? 0 : i;
      folded.push_back(layer);
      last = &folded.back();
    }
    rows.insert(rows.end(), folded.begin(), folded.end());
  }

  /// Memory that names no GPU is the same in fp32 and tf32.
  Precision precision_on(const std::string& gpu_name) const {
    if (options_.precision) return *options_.precision;
    const auto type = options_.gpus.find(gpu_name);
    return type && type->peak_tf32.value() > 0.0 ? Precision::tf32 : Precision::fp32;
  }

  LayerKey layer_key(const Model& of, const std::string& gpu_name, int tensor_parallel, int micro_batch) const {
    return {.model = of.name,
            .gpu = gpu_name,
            .precision = precision_on(gpu_name),
            .tensor_parallel = tensor_parallel,
            .micro_batch = micro_batch,
            .sequence_length = of.max_sequence_length};
  }

  Result<LayerTime> read_times(const Path& path, const Json& value) const {
    constexpr std::array<const char*, 3> names{"the forward time", "the backward time", "the update time"};
    if (!value.is_array() || value.size() != names.size())
      return invalid(file_, path, "the times of a layer are not [forward, backward, update]");
    std::array<TimeStatistics, 3> times;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto seconds = read_number(file_, path, value[i], names[i]);
      if (!seconds) return fail(seconds.error());
      times[i] = TimeStatistics::single(Seconds(*seconds));
    }
    return LayerTime{
        .forward = times[0], .backward = times[1], .update = times[2], .update_scope = UpdateScope::profiled_model};
  }

  Result<void> read_layer_times(const Json& root) {
    const bool names_missing = shape_of(root).depth == 3;
    if (names_missing && (options_.model.empty() || options_.gpu.empty()))
      return fail(ErrorCode::usage, fmt::format("{}: the file says neither model nor GPU", file_),
                  "name them with --model and --gpu");
    return visit_entries(file_, root, names_missing ? 2 : 4, [&](const Path& path, const Json& value) -> Result<void> {
      Path names = path;
      if (names_missing) names.insert(names.begin(), {options_.model, options_.gpu});
      const auto of = model(names[0]);
      if (!of) return fail(of.error());
      const auto on = gpu(names[1]);
      if (!on) return fail(on.error());
      const auto micro_batch = parse_count(file_, path, names[2], "micro-batch", 1);
      if (!micro_batch) return fail(micro_batch.error());
      const auto tensor_parallel = parse_count(file_, path, names[3], "number of tensor-parallel ranks", 1);
      if (!tensor_parallel) return fail(tensor_parallel.error());
      const auto values = layers(path, value, *of);
      if (!values) return fail(values.error());
      std::vector<LayerTime> rows;
      for (const Json* entry : *values) {
        auto row = read_times(path, *entry);
        if (!row) return fail(row.error());
        row->key = layer_key(*of, *on, *tensor_parallel, *micro_batch);
        rows.push_back(*std::move(row));
      }
      add_folded(data_.layer_times, *of, std::move(rows));
      return {};
    });
  }

  Result<LayerMemory> read_memory(const Path& path, const Json& value) const {
    if (!value.is_object()) return invalid(file_, path, "an object with the memory of a layer is missing");
    auto number = [&](const char* name) -> Result<double> {
      const auto entry = value.find(name);
      if (entry == value.end()) return invalid(file_, path, fmt::format("'{}' is missing", name));
      return read_number(file_, path, *entry, name);
    };
    const auto parameters = number("params_floats");
    const auto activation = number("act_mem_bytes");
    const auto output = number("act_output_bytes");
    const auto input = number("act_input_bytes");
    for (const auto* part : {&parameters, &activation, &output, &input})
      if (!*part) return fail(part->error());
    if (*parameters != std::trunc(*parameters) || *parameters > 9007199254740992.0)
      return invalid(file_, path, fmt::format("params_floats is {}, no number of parameters", *parameters));
    return LayerMemory{.parameters = static_cast<std::int64_t>(*parameters),
                       .activation = Bytes(*activation),
                       .output = Bytes(*output),
                       .input = Bytes(*input)};
  }

  Result<void> read_layer_memory(const Json& root) {
    return visit_entries(file_, root, 2, [&](const Path& path, const Json& value) -> Result<void> {
      const auto of = model(path[0]);
      if (!of) return fail(of.error());
      const auto tensor_parallel = parse_count(file_, path, path[1], "number of tensor-parallel ranks", 1);
      if (!tensor_parallel) return fail(tensor_parallel.error());
      const auto values = layers(path, value, *of);
      if (!values) return fail(values.error());
      std::vector<LayerMemory> rows;
      for (const Json* entry : *values) {
        auto row = read_memory(path, *entry);
        if (!row) return fail(row.error());
        row->key = layer_key(*of, any_gpu, *tensor_parallel, 1);
        rows.push_back(*std::move(row));
      }
      add_folded(data_.layer_memory, *of, std::move(rows));
      return {};
    });
  }

  Result<LinkCurve> read_curve(const Path& path, const Json& value) const {
    if (!is_curve(value) || value[0].size() != 3) return invalid(file_, path, "a link is not [[a, b, c], bytes/s]");
    std::array<double, 3> coefficients{};
    for (std::size_t i = 0; i < coefficients.size(); ++i) {
      const auto coefficient = read_number(file_, path, value[0][i], "a coefficient", true);
      if (!coefficient) return fail(coefficient.error());
      coefficients[i] = *coefficient;
    }
    const auto largest = read_number(file_, path, value[1], "the largest bandwidth");
    if (!largest) return fail(largest.error());
    return LinkCurve{.quadratic = coefficients[0],
                     .linear = coefficients[1],
                     .constant = coefficients[2],
                     .largest_bandwidth = BytesPerSecond(*largest),
                     .smallest_message = smallest_fitted_message,
                     .largest_message = largest_fitted_message};
  }

  Result<LinkEnd> link_end(const Path& path, const std::string& zone, const std::string& gpu_name,
                           const std::string& ranks) const {
    const auto of = gpu(gpu_name);
    if (!of) return fail(of.error());
    const auto count = parse_count(file_, path, ranks, "number of GPUs", 1);
    if (!count) return fail(count.error());
    return LinkEnd{.gpu = *of, .zone = zone, .ranks = *count};
  }

  Result<void> add_link(const Path& path, const Json& value, LinkEnd from, LinkEnd to, LinkScope scope) {
    const auto curve = read_curve(path, value);
    if (!curve) return fail(curve.error());
    data_.fits.push_back({.key = {.from = std::move(from), .to = std::move(to), .scope = scope}, .curve = *curve});
    return {};
  }

  Result<void> read_inter_node(const Json& root) {
    return visit_entries(file_, root, 6, [&](const Path& path, const Json& value) -> Result<void> {
      for (const std::string& zone : {path[0], path[3]})
        if (const auto problem = hdf5::problem_with_name(zone))
          return invalid(file_, path, fmt::format("zone '{}': {}", valid_utf8(zone), *problem));
      auto from = link_end(path, path[0], path[1], path[2]);
      if (!from) return fail(from.error());
      auto to = link_end(path, path[3], path[4], path[5]);
      if (!to) return fail(to.error());
      return add_link(path, value, *std::move(from), *std::move(to), LinkScope::inter_node);
    });
  }

  /// The key counts all GPUs: half of them send, each to one of the others.
  Result<void> read_inside_a_node(const Json& root) {
    return visit_entries(file_, root, 2, [&](const Path& path, const Json& value) -> Result<void> {
      auto end = link_end(path, "", path[0], path[1]);
      if (!end) return fail(end.error());
      if (end->ranks % 2 != 0) return invalid(file_, path, "an odd number of GPUs cannot be half senders");
      end->ranks /= 2;
      return add_link(path, value, *end, *end, LinkScope::intra_node);
    });
  }

  Result<void> read_homogeneous(const Json& root) {
    if (!root.is_object()) return invalid(file_, {}, "an object with \"inter\" and \"intra\" is missing");
    for (const auto& [key, part] : root.items()) {
      if (key == "intra") {
        SAILOR_CHECK(read_inside_a_node(part));
      } else if (key == "inter") {
        SAILOR_CHECK(visit_entries(file_, part, 2, [&](const Path& path, const Json& value) -> Result<void> {
          const auto end = link_end(path, "", path[0], path[1]);
          if (!end) return fail(end.error());
          return add_link(path, value, *end, *end, LinkScope::inter_node);
        }));
      } else {
        return invalid(file_, {key}, "unknown key (known: inter, intra)");
      }
    }
    return {};
  }

  /// Moves links with the same curve next to each other, to the place of the first.
  void gather_equal_curves() {
    auto numbers = [](const LinkFit& fit) {
      return std::tuple(fit.key.scope, fit.curve.quadratic, fit.curve.linear, fit.curve.constant,
                        fit.curve.largest_bandwidth.value());
    };
    std::map<decltype(numbers(data_.fits.front())), std::size_t> place;
    for (const LinkFit& fit : data_.fits) place.emplace(numbers(fit), place.size());
    std::stable_sort(data_.fits.begin(), data_.fits.end(),
                     [&](const LinkFit& a, const LinkFit& b) { return place.at(numbers(a)) < place.at(numbers(b)); });
  }

  std::string_view file_;
  const ImportOptions& options_;
  ProfileData data_{};
};

}  // namespace

std::string_view to_string(ImportForm form) { return form_names[static_cast<std::size_t>(form)]; }

Result<ProfileData> import_profile(std::string_view content, std::string_view name, const ImportOptions& options) {
  if (options.form ? *options.form == ImportForm::text : !begins_json_object(content))
    return parse_profile_toml(content, name);
  const auto root = parse_json(content, name);
  if (!root) return fail(root.error());
  Result<ImportForm> form = options.form ? Result<ImportForm>(*options.form) : recognise(*root, name);
  if (!form) return fail(form.error());
  return Importer(name, options).read(*root, *form);
}

int remove_repeated_links(ProfileData& data) {
  const std::vector<LinkFit> all = data.fits;
  const auto repeated = [&](const LinkFit& fit) {
    if (!fit.key.from.zone.empty() || !fit.key.to.zone.empty() || fit.key.scope != LinkScope::inter_node) return false;
    return std::any_of(all.begin(), all.end(), [&](const LinkFit& other) {
      if (other.key.from.zone.empty() || other.key.from.zone != other.key.to.zone) return false;
      LinkKey key = other.key;
      key.from.zone.clear();
      key.to.zone.clear();
      return key == fit.key && other.curve == fit.curve;
    });
  };
  return static_cast<int>(std::erase_if(data.fits, repeated));
}

}  // namespace sailor
