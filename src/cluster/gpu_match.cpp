#include "cluster/gpu_match.hpp"

#include <algorithm>
#include <cmath>

#include "core/text.hpp"

namespace sailor {

namespace {

bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

using Words = std::vector<std::string>;

/// The words of a name, in lower case, without those that all GPUs share.
Words words_of(std::string_view name) {
  Words words(1);
  for (const char c : to_lower(name)) {
    if (is_decimal(c) || is_letter(c))
      words.back() += c;
    else if (!words.back().empty())
      words.emplace_back();
  }
  std::erase_if(words, [](const std::string& word) {
    return word.empty() || word == "gpu" || word == "nvidia" || word == "tesla" || word == "geforce" || word == "amd" ||
           word == "instinct";
  });
  return words;
}

/// Whether `part` ("rtx3090") is made of consecutive `words` ("rtx", "3090").
bool contains(const Words& words, const std::string& part) {
  if (part.empty()) return false;
  for (std::size_t first = 0; first < words.size(); ++first) {
    std::string text;
    for (std::size_t last = first; last < words.size() && text.size() < part.size(); ++last) text += words[last];
    if (text == part) return true;
  }
  return false;
}

/// "80gb", "80g", "80", "sxm4", "hbm3", "pcie", "nvl": distinguishes GPUs of one kind, but names no kind. The same
/// holds for words that GPUs outside the catalogue share: "rtx 6000" is a Quadro, too.
bool is_variant(const std::string& word) {
  for (const std::string_view shared : {"pcie", "nvl", "sxm", "rtx", "generation", "ada", "titan", "6000"})
    if (word == shared) return true;
  if (word.starts_with("sxm") || word.starts_with("hbm")) return true;
  const std::size_t digits =
      static_cast<std::size_t>(std::find_if_not(word.begin(), word.end(), is_decimal) - word.begin());
  if (digits == 0) return false;
  const std::string_view unit = std::string_view(word).substr(digits);
  return digits <= 3 && (unit.empty() || unit == "g" || unit == "gb" || unit == "gib");
}

bool names_a_kind(const Words& words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) { return !is_variant(word); });
}

/// Whether it is a part of a GPU in Slurm's notation: "1g.5gb", "a100_3g.20gb".
bool is_instance(std::string_view gres_type) {
  for (std::size_t i = 1; i + 2 < gres_type.size(); ++i)
    if (gres_type[i] == 'g' && gres_type[i + 1] == '.' && is_decimal(gres_type[i - 1]) && is_decimal(gres_type[i + 2]))
      return true;
  return false;
}

/// All names that people, Slurm and drivers use for it.
std::vector<std::string> names_of(const GpuType& type) {
  std::vector<std::string> names{type.name};
  for (const auto* more : {&type.aliases, &type.slurm_gres, &type.driver_names})
    names.insert(names.end(), more->begin(), more->end());
  return names;
}

/// A word from Slurm, and the GPUs that it can mean.
struct Clue {
  std::vector<const GpuType*> types;  ///< those with a name that contains it
  const GpuType* exact = nullptr;     ///< the one whose name it is
  bool names_a_kind = false;
};

Clue clue_of(const GpuCatalogue& catalogue, std::string_view word) {
  const Words words = words_of(word);
  const std::string whole = join(words, "");
  Clue clue{.types = {}, .exact = nullptr, .names_a_kind = names_a_kind(words)};
  for (const GpuType& type : catalogue.types()) {
    if (type.kind != DeviceKind::gpu) continue;
    bool part = false;
    for (const std::string& name : names_of(type)) {
      const Words own = words_of(name);
      part = part || contains(own, whole);
      if (clue.exact == nullptr && !whole.empty() && join(own, "") == whole) clue.exact = &type;
    }
    if (part) clue.types.push_back(&type);
  }
  clue.names_a_kind = clue.names_a_kind || clue.exact != nullptr;
  return clue;
}

/// The value in "GPU_SKU:H100_SXM5".
std::string_view value_of(std::string_view feature) {
  const std::size_t mark = feature.find_last_of(":=");
  return mark == std::string_view::npos ? feature : feature.substr(mark + 1);
}

/// The driver's name as Slurm converts it, before it looks for the configured type in it.
std::string as_gres(std::string_view driver_name) {
  std::string type = to_lower(driver_name);
  std::replace(type.begin(), type.end(), ' ', '_');
  return type;
}

/// The GPU whose slurm_gres has exactly this type.
const GpuType* claimed(const GpuCatalogue& catalogue, std::string_view gres_type) {
  const std::string wanted = to_lower(gres_type);
  for (const GpuType& type : catalogue.types()) {
    const auto is_it = [&](const std::string& gres) { return to_lower(gres) == wanted; };
    if (std::any_of(type.slurm_gres.begin(), type.slurm_gres.end(), is_it)) return &type;
  }
  for (const GpuType& type : catalogue.types())
    for (const std::string& name : type.driver_names)
      if (as_gres(name) == wanted) return &type;
  return nullptr;
}

bool among(const std::vector<const GpuType*>& types, const GpuType* type) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

}  // namespace

GpuMatch match_gres(const GpuCatalogue& catalogue, std::string_view gres_type, std::span<const std::string> features) {
  if (is_instance(to_lower(gres_type))) return {};
  const GpuType* const own = gres_type.empty() ? nullptr : claimed(catalogue, gres_type);
  GpuMatch by_claim{.type = own, .candidates = {}};
  if (own != nullptr && own->kind != DeviceKind::gpu) return by_claim;
  std::vector<Clue> clues;
  if (!gres_type.empty()) clues.push_back(clue_of(catalogue, gres_type));
  const std::vector<const GpuType*> may_be = own == nullptr ? std::vector<const GpuType*>() : clues.front().types;
  for (const std::string& feature : features) clues.push_back(clue_of(catalogue, value_of(feature)));
  // Clues that name a kind of GPU count before those that only distinguish variants.
  std::stable_partition(clues.begin(), clues.end(), [](const Clue& clue) { return clue.names_a_kind; });
  std::vector<const GpuType*> left;
  const GpuType* named = nullptr;
  for (const Clue& clue : clues) {
    if (clue.types.empty() || (left.empty() && !clue.names_a_kind)) continue;
    std::vector<const GpuType*> both;
    std::copy_if(clue.types.begin(), clue.types.end(), std::back_inserter(both),
                 [&](const GpuType* type) { return left.empty() || among(left, type); });
    if (!both.empty()) left = std::move(both);
    if (named == nullptr) named = clue.exact;
  }
  if (left.size() == 1 && (own == nullptr || among(may_be, left.front())))
    return {.type = left.front(), .candidates = {}};
  if (own != nullptr || left.empty()) return by_claim;
  if (named != nullptr && among(left, named)) return {.type = named, .candidates = {}};
  return {.type = nullptr, .candidates = std::move(left)};
}

bool may_be(const GpuCatalogue& catalogue, std::string_view gres_type, std::string_view gpu) {
  const GpuType* const own = claimed(catalogue, gres_type);
  const Clue clue = clue_of(catalogue, gres_type);
  if (own == nullptr && clue.types.empty()) return true;  // a name chosen by the administrator
  return (own != nullptr && own->name == gpu) ||
         std::any_of(clue.types.begin(), clue.types.end(), [&](const GpuType* type) { return type->name == gpu; });
}

const GpuType* match_device(const GpuCatalogue& catalogue, std::string_view device_name, std::optional<Bytes> memory) {
  constexpr double tolerance = 0.1;  // drivers reserve some; GB or GiB
  const auto has_memory = [&](const GpuType& type) {
    return type.kind == DeviceKind::gpu && (!memory || std::abs(*memory / type.memory - 1.0) <= tolerance);
  };
  if (const GpuType* type = claimed(catalogue, as_gres(device_name)); type != nullptr && has_memory(*type)) return type;
  // If the catalogue lacks the driver's name: the GPU with the longest name contained in it.
  const Words device = words_of(device_name);
  const GpuType* found = nullptr;
  std::size_t most = 0;
  for (const GpuType& type : catalogue.types()) {
    if (!has_memory(type)) continue;
    std::size_t length = 0;
    for (const std::string& name : names_of(type)) {
      Words words = words_of(name);
      if (contains(device, join(words, ""))) length = std::max(length, join(words, "").size());
      // "A100-40": drops the memory, which drivers write differently
      if (words.size() > 1 && is_variant(words.back())) words.pop_back();
      if (names_a_kind(words) && contains(device, join(words, ""))) length = std::max(length, join(words, "").size());
    }
    if (length == 0 || length < most) continue;
    found = length == most ? nullptr : &type;
    most = length;
  }
  return found;
}

}  // namespace sailor
