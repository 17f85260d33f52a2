#include "runtime/gradient_reducer.hpp"

#include <algorithm>
#include <span>

#include "core/assert.hpp"
#include "runtime/layer.hpp"
#include "runtime/waits.hpp"

namespace sailor::runtime {

namespace {

/// For assertions: whether every gradient is in one bucket at most, so that no two reductions write the same values.
bool are_disjoint(const std::vector<GradientBucket>& buckets) {
  std::vector<Range> ranges;
  for (const GradientBucket& bucket : buckets) ranges.push_back(bucket.range);
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  return std::adjacent_find(ranges.begin(), ranges.end(),
                            [](const Range& a, const Range& b) { return b.first < a.last; }) == ranges.end();
}

}  // namespace

GradientReducer::GradientReducer(const RankSums& sums, const ReducerSettings& settings, const World& world,
                                 Device& device, ParameterStorage& parameters, TimelineRecorder& timeline)
    : device_(device),
      parameters_(parameters),
      settings_(settings),
      timeline_(timeline),
      counted_(sums.counted),
      stream_(device.make_stream()),
      ready_(device.make_event()),
      summed_(device.make_event()) {
  SAILOR_ASSERT(are_disjoint(sums.buckets), "two buckets share gradients");
  SAILOR_ASSERT(std::all_of(sums.buckets.begin(), sums.buckets.end(),
                            [&](const GradientBucket& bucket) { return bucket.group < sums.groups.size(); }),
                "a bucket is reduced by a group that there is not");
  world.control.barrier();  // with a timeout, unlike the calls that make groups
  for (const std::vector<int>& ranks : sums.groups) groups_.push_back(world.transport.make_group(ranks));
  for (const GradientBucket& bucket : sums.buckets)
    buckets_.push_back(
        {.what = bucket, .gathered = settings.sharding == OptimizerSharding::zero1 ? device.make_event() : nullptr});
}

bool GradientReducer::is_ready(const Bucket& bucket) const {
  return std::all_of(bucket.what.layers.begin(), bucket.what.layers.end(),
                     [&](int layer) { return finished_.contains(layer); });
}

void GradientReducer::start(const Bucket& bucket) {
  float* const gradients = parameters_.gradients() + bucket.what.range.first;
  if (bucket.what.shared) device_.main().scale(gradients, settings_.share, bucket.what.range.size());
  device_.main().record(*ready_);
  if (waits(Wait::sums_for_gradients)) stream_->wait(*ready_);
  const std::size_t shown = timeline_.begin_overlapped(*stream_, Activity::reduce);
  if (settings_.sharding == OptimizerSharding::zero1)
    group_of(bucket).reduce_scatter_sum(*stream_, gradients, bucket.what.range.size());
  else
    group_of(bucket).all_reduce_sum(*stream_, gradients, bucket.what.range.size());
  timeline_.end_overlapped(shown, *stream_);
}

void GradientReducer::finished(int layer) {
  SAILOR_ASSERT(
      finished_.empty() || layer < *finished_.begin(),
      "layers do not finish from last to first: ranks would reduce in different orders, and wait for each other");
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
    const std::size_t shown = timeline_.begin_overlapping_next(*stream_, Activity::reduce);
    group_of(*bucket).all_gather(*stream_, parameters_.values() + bucket->what.range.first, bucket->what.range.size());
    timeline_.end_overlapped(shown, *stream_);
    stream_->record(*bucket->gathered);
    bucket->is_awaited = false;
  }
}

void GradientReducer::wait_for_values(int layer) {
  if (settings_.sharding != OptimizerSharding::zero1) return;
  for (Bucket& bucket : buckets_) {
    if (bucket.is_awaited ||
        std::find(bucket.what.layers.begin(), bucket.what.layers.end(), layer) == bucket.what.layers.end())
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

}  // namespace sailor::runtime
