#include "runtime/gradient_reducer.hpp"

#include <algorithm>

#include "runtime/layer.hpp"

namespace sailor::runtime {

namespace {

/// Ascending, neighbours joined.
std::vector<Range> joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (range.size() == 0) continue;
    if (!result.empty() && result.back().last == range.first)
      result.back().last = range.last;
    else
      result.push_back(range);
  }
  return result;
}

}  // namespace

GradientReducer::GradientReducer(const ParameterMap& map, const ReducerSettings& settings, Communicator& world,
                                 Device& device, ParameterStorage& parameters)
    : device_(device), parameters_(parameters), settings_(settings) {
  world.barrier();  // with a timeout, unlike the calls that make communicators
  const int rank = world.rank();
  const auto bucket_values = static_cast<std::int64_t>(settings.bucket.value() / sizeof(float));
  for (const GradientGroup& group : map.groups()) {
    const auto place = std::find(group.ranks.begin(), group.ranks.end(), rank);
    if (place == group.ranks.end()) continue;
    const Shard share{static_cast<int>(place - group.ranks.begin()), static_cast<int>(group.ranks.size())};
    Communicator* communicator = nullptr;
    if (share.count > 1) {
      communicators_.push_back(world.subgroup(group.ranks));
      communicator = communicators_.back().get();
    }
    const bool zero1 = settings.sharding == OptimizerSharding::zero1;
    for (const Range& run : group.runs) {
      std::int64_t begin = run.first;
      while (begin < run.last) {
        Bucket bucket{.group = communicator, .range = {}, .waits_for = {}, .shared = group.shared};
        std::int64_t end = begin;
        for (std::int64_t values = 0; end < run.last && (end == begin || values < bucket_values); ++end) {
          const GradientSlice& slice = group.slices[static_cast<std::size_t>(end)];
          values += slice.whole.size();
          bucket.waits_for.push_back(slice.layer);
        }
        bucket.range = {map.local(rank, group.slices[static_cast<std::size_t>(begin)]).first,
                        map.local(rank, group.slices[static_cast<std::size_t>(end) - 1]).last};
        begin = end;
        Range mine = bucket.range;
        if (zero1) {
          const Range part = cut(bucket.range.size(), share);
          mine = {bucket.range.first + part.first, bucket.range.first + part.last};
        }
        owned_.push_back(mine);
        if (group.first && (zero1 || share.index == 0)) counted_.push_back(mine);
        if (communicator != nullptr) buckets_.push_back(std::move(bucket));
      }
    }
  }
  // In the order in which backward passes complete them, which is the same wherever two of them meet: a group that
  // reaches down to the first layer must not hold up the others.
  std::reverse(buckets_.begin(), buckets_.end());
  std::stable_sort(buckets_.begin(), buckets_.end(), [](const Bucket& a, const Bucket& b) {
    return *std::min_element(a.waits_for.begin(), a.waits_for.end()) >
           *std::min_element(b.waits_for.begin(), b.waits_for.end());
  });
  owned_ = joined(std::move(owned_));
  counted_ = joined(std::move(counted_));
  share_ = 1.0f / static_cast<float>(map.degree(rank));
}

bool GradientReducer::is_ready(const Bucket& bucket) const {
  return std::all_of(bucket.waits_for.begin(), bucket.waits_for.end(),
                     [&](int layer) { return finished_.contains(layer); });
}

void GradientReducer::start(const Bucket& bucket) {
  float* const gradients = parameters_.gradients() + bucket.range.first;
  if (bucket.shared) device_.scale(gradients, share_, bucket.range.size());
  device_.synchronize();  // before another party reads the memory
  const auto begin = TimelineRecorder::Clock::now();
  if (settings_.sharding == OptimizerSharding::zero1) {
    bucket.group->reduce_scatter_sum(gradients, bucket.range.size());
    if (settings_.timeline != nullptr) settings_.timeline->overlapped(Activity::reduce, begin);
  } else {
    under_way_.push_back({bucket.group->all_reduce_sum_later(gradients, bucket.range.size()), begin});
  }
}

void GradientReducer::finished(int layer) {
  finished_.insert(layer);
  if (!settings_.overlap || settings_.sharding == OptimizerSharding::zero1) return;
  while (started_ < buckets_.size() && is_ready(buckets_[started_])) start(buckets_[started_++]);
}

void GradientReducer::progress() {
  while (!under_way_.empty() && under_way_.front().request->test()) drop_first();
}

void GradientReducer::finish() {
  while (started_ < buckets_.size()) start(buckets_[started_++]);
  while (!under_way_.empty()) {
    under_way_.front().request->wait();
    drop_first();
  }
  started_ = 0;
  finished_.clear();
}

void GradientReducer::drop_first() {
  if (settings_.timeline != nullptr) settings_.timeline->overlapped(Activity::reduce, under_way_.front().begin);
  under_way_.pop_front();
}

void GradientReducer::gather_values() {
  if (settings_.sharding != OptimizerSharding::zero1) return;
  device_.synchronize();
  for (const Bucket& bucket : buckets_)
    bucket.group->all_gather(parameters_.values() + bucket.range.first, bucket.range.size());
}

double GradientReducer::squared_norm() {
  double sum = 0.0;
  for (const Range& range : counted_) sum += device_.squared_sum(parameters_.gradients() + range.first, range.size());
  return sum;
}

Bytes GradientReducer::volume() const {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets_) count += bucket.range.size();
  return Bytes(static_cast<double>(count) * sizeof(float));
}

}  // namespace sailor::runtime
