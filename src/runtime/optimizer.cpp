#include "runtime/optimizer.hpp"

#include <algorithm>

namespace sailor::runtime {

AdamW::AdamW(Device& device, ParameterStorage& parameters) : AdamW(device, parameters, {{0, parameters.size()}}) {}

AdamW::AdamW(Device& device, ParameterStorage& parameters, const std::vector<Range>& owned)
    : device_(device), parameters_(parameters) {
  std::int64_t moments = 0;
  for (const Range& range : owned)
    for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
      const std::int64_t start = parameters.offset(i);
      const std::int64_t first = std::max(range.first, start);
      const std::int64_t last = std::min(range.last, start + parameters.parameters()[i]->elements());
      if (first >= last) continue;
      parts_.push_back({.parameter = i, .first = first - start, .count = last - first, .moment = moments});
      moments += last - first;
    }
  for (Tensor* tensor : {&first_moments_, &second_moments_}) {
    *tensor = Tensor(device_, {moments});
    device_.main().zero(tensor->data(), tensor->bytes());
  }
  const bool has_masters = parameters.type() != DataType::float32;
  if (has_masters) master_values_ = Tensor(device_, {moments});
  for (const Part& part : parts_) {
    const Parameter& parameter = *parameters_.parameters()[part.parameter];
    const Values value = parameter.value + part.first;
    segments_.push_back({.value = has_masters ? master_values_.floats() + part.moment : value.floats(),
                         .gradient = parameter.gradient + part.first,
                         .first_moment = first_moments_.floats() + part.moment,
                         .second_moment = second_moments_.floats() + part.moment,
                         .count = part.count,
                         .decays = parameter.decays,
                         .rounded = has_masters ? value : Values(nullptr)});
    if (has_masters) device_.main().convert(segments_.back().value, value, part.count);
  }
}

void AdamW::initialize(std::uint64_t seed) {
  if (master_values_.empty()) return;
  std::int64_t largest = 0;
  for (const Part& part : parts_) largest = std::max(largest, part.count);
  const InitialValues initial(device_, seed, largest);
  for (const Part& part : parts_)
    initial.each(*parameters_.parameters()[part.parameter], {part.first, part.first + part.count},
                 [&](std::int64_t first, std::span<const float> values) {
                   device_.write(master_values_.floats() + part.moment + (first - part.first), values.data(),
                                 values.size_bytes());
                 });
}

void AdamW::step(const AdamWStep& step, const float* gradient_factor) {
  device_.main().adamw(step, segments_, gradient_factor);
}

}  // namespace sailor::runtime
