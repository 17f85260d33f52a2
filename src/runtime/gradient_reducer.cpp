#include "runtime/gradient_reducer.hpp"

#include <algorithm>
#include <span>

#include "runtime/layer.hpp"
#include "runtime/waits.hpp"

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

GradientReducer::GradientReducer(const ParameterMap& map, const ReducerSettings& settings, const World& world,
                                 Device& device, ParameterStorage& parameters)
    : device_(device),
      parameters_(parameters),
      settings_(settings),
      stream_(device.make_stream()),
      ready_(device.make_event()),
      summed_(device.make_event()) {
  world.control.barrier();  // with a timeout, unlike the calls that make groups
  const int rank = world.rank();
  const auto bucket_values = static_cast<std::int64_t>(settings.bucket.value() / sizeof(float));
  for (const GradientGroup& group : map.groups()) {
    const auto place = std::find(group.ranks.begin(), group.ranks.end(), rank);
    if (place == group.ranks.end()) continue;
    const Shard share{static_cast<int>(place - group.ranks.begin()), static_cast<int>(group.ranks.size())};
    Group* sums = nullptr;
    if (share.count > 1) {
      groups_.push_back(world.transport.make_group(group.ranks));
      sums = groups_.back().get();
    }
    const bool zero1 = settings.sharding == OptimizerSharding::zero1;
    for (const Range& run : group.runs) {
      std::int64_t begin = run.first;
      while (begin < run.last) {
        Bucket bucket{.group = sums, .range = {}, .waits_for = {}, .shared = group.shared};
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
        if (sums == nullptr) continue;
        if (zero1) bucket.gathered = device.make_event();
        buckets_.push_back(std::move(bucket));
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
  if (bucket.shared) device_.main().scale(gradients, share_, bucket.range.size());
  device_.main().record(*ready_);
  if (waits(Wait::sums_for_gradients)) stream_->wait(*ready_);
  const std::size_t shown =
      settings_.timeline == nullptr ? 0 : settings_.timeline->begin_overlapped(*stream_, Activity::reduce);
  if (settings_.sharding == OptimizerSharding::zero1)
    bucket.group->reduce_scatter_sum(*stream_, gradients, bucket.range.size());
  else
    bucket.group->all_reduce_sum(*stream_, gradients, bucket.range.size());
  if (settings_.timeline != nullptr) settings_.timeline->end_overlapped(shown, *stream_);
}

void GradientReducer::finished(int layer) {
  finished_.insert(layer);
  if (!settings_.overlap || settings_.sharding == OptimizerSharding::zero1) return;
  while (started_ < buckets_.size() && is_ready(buckets_[started_])) start(buckets_[started_++]);
}

void GradientReducer::finish() {
  while (started_ < buckets_.size()) start(buckets_[started_++]);
  stream_->record(*summed_);
  if (waits(Wait::update_for_sums)) device_.main().wait(*summed_);
  started_ = 0;
  finished_.clear();
}

void GradientReducer::gather_values() {
  if (settings_.sharding != OptimizerSharding::zero1) return;
  device_.main().record(*ready_);
  if (waits(Wait::gathers_for_update)) stream_->wait(*ready_);
  // The first layers come first: they are needed first.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const std::size_t shown =
        settings_.timeline == nullptr ? 0 : settings_.timeline->begin_overlapping_next(*stream_, Activity::reduce);
    bucket->group->all_gather(*stream_, parameters_.values() + bucket->range.first, bucket->range.size());
    if (settings_.timeline != nullptr) settings_.timeline->end_overlapped(shown, *stream_);
    stream_->record(*bucket->gathered);
    bucket->is_awaited = false;
  }
}

void GradientReducer::wait_for_values(int layer) {
  if (settings_.sharding != OptimizerSharding::zero1) return;
  for (Bucket& bucket : buckets_) {
    if (bucket.is_awaited ||
        std::find(bucket.waits_for.begin(), bucket.waits_for.end(), layer) == bucket.waits_for.end())
      continue;
    if (waits(Wait::layer_for_its_values)) device_.main().wait(*bucket.gathered);
    bucket.is_awaited = true;
  }
}

void GradientReducer::wait_for_values() {
  for (Bucket& bucket : buckets_) {
    if (bucket.gathered == nullptr || bucket.is_awaited) continue;
    if (waits(Wait::reader_for_all_values)) device_.main().wait(*bucket.gathered);
    bucket.is_awaited = true;
  }
}

void GradientReducer::add_squares(double* sum) {
  std::vector<std::span<const float>> gradients;
  for (const Range& range : counted_)
    gradients.emplace_back(parameters_.gradients() + range.first, static_cast<std::size_t>(range.size()));
  device_.main().add_squares(gradients, sum);
}

Bytes GradientReducer::volume() const {
  std::int64_t count = 0;
  for (const Bucket& bucket : buckets_) count += bucket.range.size();
  return Bytes(static_cast<double>(count) * sizeof(float));
}

}  // namespace sailor::runtime
