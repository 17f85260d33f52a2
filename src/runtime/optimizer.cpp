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
    device_.zero(tensor->data(), tensor->bytes());
  }
}

void AdamW::step(const AdamWStep& step) {
  for (const Part& part : parts_) {
    const Parameter& parameter = *parameters_.parameters()[part.parameter];
    AdamWStep own = step;
    if (!parameter.decays) own.weight_decay = 0.0f;
    device_.adamw(own, parameter.value + part.first, parameter.gradient + part.first,
                  first_moments_.floats() + part.moment, second_moments_.floats() + part.moment, part.count);
  }
}

}  // namespace sailor::runtime
