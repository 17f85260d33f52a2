#include "runtime/parameters.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <span>
#include <stdexcept>

#include "core/worker_threads.hpp"
#include "runtime/bits16.hpp"
#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

/// SplitMix64's output function (Steele et al. 2014).
constexpr std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::uint64_t key_of(const Parameter& parameter, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char letter : parameter.name) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return mix(mix(mix(seed) ^ static_cast<std::uint64_t>(parameter.layer)) ^ hash);
}

/// Calls body(first, last) for parts of [0, count), side by side on the cores that this thread may use.
template <class Body>
void on_all_cores(std::int64_t count, const Body& body) {
  constexpr std::int64_t least = std::int64_t{1} << 20;  // smaller parts are not worth a thread
  const std::int64_t parts = std::max<std::int64_t>(1, count / least);
  WorkerThreads(0).for_each(static_cast<std::size_t>(parts), [&](std::size_t index, std::size_t) {
    const auto part = static_cast<std::int64_t>(index);
    body(count * part / parts, count * (part + 1) / parts);
  });
}

// The sum of eight uniform 16-bit integers, centred and scaled to deviation 1: close to normal (up to 4.9
// deviations), and exact in integers, unlike anything that calls log and cos of the machine's libm.
float normal(std::uint64_t bits_a, std::uint64_t bits_b) {
  std::int64_t sum = 0;
  for (int shift = 0; shift < 64; shift += 16)
    sum +=
        static_cast<std::int64_t>((bits_a >> shift) & 0xffff) + static_cast<std::int64_t>((bits_b >> shift) & 0xffff);
  constexpr double mean = 8 * 65535 / 2.0;
  constexpr double reciprocal_deviation = 1.8688123650118534e-5;  // 1 / sqrt(8 * (65536^2 - 1) / 12)
  return static_cast<float>((static_cast<double>(sum) - mean) * reciprocal_deviation);
}

std::vector<Parameter*> parameters_of(const std::vector<Layer*>& layers) {
  std::vector<Parameter*> parameters;
  for (Layer* layer : layers)
    for (Parameter& parameter : layer->parameters()) parameters.push_back(&parameter);
  return parameters;
}

}  // namespace

std::int64_t Parameter::whole_elements() const {
  if (!is_divided()) return elements();
  return std::accumulate(segments.begin(), segments.end(), std::int64_t{0}) * width();
}

std::vector<Piece> Parameter::pieces() const {
  if (!is_divided()) return {{.whole = 0, .local = 0, .count = elements()}};
  return pieces_of(segments, width(), shard, held_segments());
}

namespace {

/// initial_values() of elements [first, first + values.size()) of the part that this rank holds.
void fill_initial_values(const Parameter& parameter, std::uint64_t seed, std::int64_t first, std::span<float> values) {
  if (parameter.initial != InitialValue::normal) {
    std::fill(values.begin(), values.end(), parameter.initial == InitialValue::one ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t key = key_of(parameter, seed);
  for (const Piece& piece : clip(parameter.pieces(), {first, first + std::ssize(values)})) {
    float* const to = values.data() + (piece.local - first);
    on_all_cores(piece.count, [&](std::int64_t from, std::int64_t until) {
      for (std::int64_t i = from; i < until; ++i) {
        const auto element = static_cast<std::uint64_t>(piece.whole + i);
        to[i] = parameter.deviation * normal(mix(key + 2 * element), mix(key + 2 * element + 1));
      }
    });
  }
}

}  // namespace

std::vector<float> initial_values(const Parameter& parameter, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
  fill_initial_values(parameter, seed, 0, values);
  return values;
}

InitialValues::InitialValues(Device& device, std::uint64_t seed, std::int64_t largest)
    : device_(device),
      seed_(seed),
      part_(std::clamp<std::int64_t>(largest, 1, most)),
      buffer_(static_cast<float*>(device.allocate_host(static_cast<std::size_t>(part_) * sizeof(float)))) {}
InitialValues::~InitialValues() { device_.release_host(buffer_); }

void InitialValues::each(const Parameter& parameter, const Range& elements,
                         const std::function<void(std::int64_t, std::span<const float>)>& use) const {
  for (std::int64_t first = elements.first; first < elements.last; first += part_) {
    const std::span<float> part(buffer_, static_cast<std::size_t>(std::min(part_, elements.last - first)));
    fill_initial_values(parameter, seed_, first, part);
    use(first, part);
  }
}

ParameterStorage::ParameterStorage(Device& device, const std::vector<Layer*>& layers)
    : ParameterStorage(device, parameters_of(layers)) {}

ParameterStorage::ParameterStorage(Device& device, std::vector<Parameter*> parameters)
    : device_(device), parameters_(std::move(parameters)) {
  offsets_.push_back(0);
  for (const Parameter* parameter : parameters_) offsets_.push_back(offsets_.back() + padded(parameter->elements()));
  const DataType type = parameters_.empty() ? DataType::float32 : parameters_.front()->value.type;
  values_ = Tensor(device_, {offsets_.back()}, type);
  gradients_ = Tensor(device_, {offsets_.back()});
  for (Tensor* tensor : {&values_, &gradients_}) device_.main().zero(tensor->data(), tensor->bytes());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i]->value.type != type) throw std::logic_error("parameters of one storage have different types");
    parameters_[i]->value = values_.values() + offsets_[i];
    parameters_[i]->gradient = gradients_.floats() + offsets_[i];
  }
}

void ParameterStorage::lend_to(const std::vector<Layer*>& layers) const {
  const std::vector<Parameter*> theirs = parameters_of(layers);
  const auto is_same = [](const Parameter* mine, const Parameter* other) {
    return mine->layer == other->layer && mine->name == other->name && mine->shape == other->shape &&
           mine->value.type == other->value.type;
  };
  if (!std::equal(parameters_.begin(), parameters_.end(), theirs.begin(), theirs.end(), is_same))
    throw std::logic_error("a storage is lent to layers with other parameters");
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    theirs[i]->value = parameters_[i]->value;
    theirs[i]->gradient = parameters_[i]->gradient;
  }
}

void ParameterStorage::initialize(std::uint64_t seed) {
  std::int64_t largest = 0;
  for (const Parameter* parameter : parameters_) largest = std::max(largest, parameter->elements());
  const InitialValues initial(device_, seed, largest);
  for (const Parameter* parameter : parameters_)
    initial.each(*parameter, {0, parameter->elements()}, [&](std::int64_t first, std::span<const float> values) {
      set_values(*parameter, first, values.data(), std::ssize(values));
    });
}

void ParameterStorage::set_values(const Parameter& parameter, std::int64_t first, const float* host,
                                  std::int64_t count) {
  const Values to = parameter.value + first;
  if (to.is_float32()) {
    device_.write(to.data, host, bytes_of(to.type, count));
    return;
  }
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(count));
  on_all_cores(count, [&](std::int64_t from, std::int64_t until) {
    std::transform(host + from, host + until, rounded.begin() + from,
                   [&](float value) { return to_bits16(to.type, value); });
  });
  device_.write(to.data, rounded.data(), bytes_of(to.type, count));
}

void ParameterStorage::zero_gradients() { device_.main().zero(gradients_.data(), gradients_.bytes()); }

std::int64_t ParameterStorage::elements() const {
  std::int64_t sum = 0;
  for (const Parameter* parameter : parameters_) sum += parameter->elements();
  return sum;
}

}  // namespace sailor::runtime
