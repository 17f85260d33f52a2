#include "planner/artifact/evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/artifact/published.hpp"

namespace sailor::planner::artifact {

namespace {

constexpr double bytes_per_gb = 1e9;
constexpr double bytes_per_mb = 1e6;
constexpr double state_bytes_per_parameter = 24.0;

double base_memory(int tensor_parallel) { return tensor_parallel == 1 ? 2.0e9 : 3.0e9; }

/// Replicas of two neighbouring stages with equal numbers, side by side: visit(run, run, how many).
template <class Visit>
void visit_pairs(const std::vector<Run>& left, const std::vector<Run>& right, Visit visit) {
  std::size_t i = 0;
  std::size_t j = 0;
  int left_over = left.front().count;
  int right_over = right.front().count;
  while (true) {
    const int both = std::min(left_over, right_over);
    visit(left[i], right[j], both);
    left_over -= both;
    right_over -= both;
    if (left_over == 0) {
      if (++i == left.size()) return;
      left_over = left[i].count;
    }
    if (right_over == 0) {
      if (++j == right.size()) return;
      right_over = right[j].count;
    }
  }
}

tl::unexpected<Error> no_link(const Tables& tables, const Run& from, const Run& to) {
  return fail(
      ErrorCode::not_found,
      fmt::format("the artifact's network data have no link from {} in zone '{}' to {} in zone '{}'",
                  tables.gpus()[from.gpu], tables.zones()[from.zone], tables.gpus()[to.gpu], tables.zones()[to.zone]),
      "use GPU types and zones of profiles/networks/sailor.toml");
}

/// Time of the longest message of `bytes` from a replica of `from` to its counterpart of `to`.
Result<double> slowest_send(const Tables& tables, const std::vector<Run>& from, const std::vector<Run>& to,
                            double bytes) {
  double slowest = 0.0;
  std::optional<Error> error;
  visit_pairs(from, to, [&](const Run& a, const Run& b, int) {
    const Curve* curve = tables.link(a.gpu, a.zone, a.tensor_parallel, b.gpu, b.zone, b.tensor_parallel);
    if (curve == nullptr)
      error = no_link(tables, a, b).value();
    else if (bytes > 0.0)
      slowest = std::max(slowest, message_time(bytes, *curve));
  });
  if (error) return fail(*error);
  return slowest;
}

}  // namespace

double message_time(double bytes, const Curve& curve) {
  const double x = std::log2(bytes / bytes_per_mb);
  return bytes / bytes_per_gb / ((curve[0] * x + curve[1]) * x + curve[2]);
}

double bucketed_all_reduce(double bytes, int ranks, const Curve& curve) {
  if (ranks <= 1) return 0.0;
  double time = 0.0;
  while (bytes > 0.0) {
    const double bucket = std::min(bytes, bucket_bytes);
    const double piece = message_time(bucket / ranks, curve);
    time += 2.0 * (ranks - 1) * piece;
    bytes -= bucket;
  }
  return time;
}

Result<Tables> Tables::build(const TrainingJob& job, const Model& model, const Profile& profile,
                             const GpuCatalogue& catalogue, const std::vector<std::string>& gpus,
                             const std::vector<std::string>& zones) {
  Tables tables;
  tables.layers_ = model.layers();
  tables.global_batch_ = job.global_batch;
  tables.gpus_ = gpus;
  tables.zones_ = zones;
  const int layers = tables.layers_;
  for (const std::string& gpu : gpus) {
    auto type = catalogue.find(gpu);
    if (!type) return fail(type.error());
    const PublishedGpu* known = find_published_gpu(gpu);
    const bool priced = known != nullptr && known->usd_per_hour > 0.0;
    tables.memory_.push_back(known != nullptr ? known->memory_gib * gib.value() : type->memory.value());
    tables.price_.push_back((priced ? known->usd_per_hour : type->price.value()) / 3600.0);
    tables.max_senders_.push_back(1);
  }
  const auto gpu_index = [&](const std::string& name) {
    return static_cast<int>(std::find(gpus.begin(), gpus.end(), name) - gpus.begin());
  };
  const ProfileData& data = profile.data();
  const auto of_job = [&](const LayerKey& key) {
    return key.model == model.name && key.sequence_length == job.sequence_length && key.recompute == Recompute::none;
  };

  std::map<int, std::set<Precision>> precisions;
  for (const LayerTime& row : data.layer_times)
    if (of_job(row.key)) precisions[gpu_index(row.key.gpu)].insert(row.key.precision);
  std::map<std::array<int, 3>, LayerRows<LayerTime>> times;
  for (const LayerTime& row : data.layer_times) {
    const int gpu = gpu_index(row.key.gpu);
    if (!of_job(row.key) || gpu == static_cast<int>(gpus.size()) ||
        precision_of(precisions[gpu], job.precision) != row.key.precision)
      continue;
    auto& slot = times[{gpu, row.key.micro_batch, row.key.tensor_parallel}][{row.key.kind, row.key.first_layer}];
    if (slot == nullptr || row.key.busy_ranks < slot->key.busy_ranks) slot = &row;
  }
  for (const auto& [key, rows] : times) {
    Times& entry = tables.times_[key];
    entry.compute.push_back(0.0);
    bool complete = true;
    for (int layer = 0; layer < layers && complete; ++layer) {
      const LayerTime* row = row_of(rows, model.layer_kind(layer), layer);
      complete = row != nullptr;
      if (!complete) break;
      entry.compute.push_back(entry.compute.back() + row->forward.median.value() + row->backward.median.value());
      entry.update.push_back(row->update.median.value());
    }
    if (!complete || entry.compute.back() <= 0.0) tables.times_.erase(key);
  }

  std::map<std::array<int, 2>, LayerRows<LayerMemory>> sizes;  // by GPU type; gpus.size(): any type
  for (const LayerMemory& row : data.layer_memory) {
    const int gpu = gpu_index(row.key.gpu);
    const bool usable = gpu < static_cast<int>(gpus.size()) || row.key.gpu == any_gpu;
    if (of_job(row.key) && usable && row.key.micro_batch == 1)
      sizes[{gpu, row.key.tensor_parallel}].try_emplace({row.key.kind, row.key.first_layer}, &row);
  }
  for (const auto& [key, rows] : sizes) {
    Sizes entry{{0.0}, {0.0}};
    std::vector<double> output;
    for (int layer = 0; layer < layers; ++layer) {
      const LayerMemory* row = row_of(rows, model.layer_kind(layer), layer);
      if (row == nullptr) break;
      entry.parameters.push_back(entry.parameters.back() + static_cast<double>(row->parameters));
      entry.activations.push_back(entry.activations.back() + row->activation.value());
      output.push_back(row->output.value());
    }
    if (static_cast<int>(output.size()) < layers) continue;
    if (key[1] == 1 && (tables.output_.empty() || key[0] == static_cast<int>(gpus.size()))) {
      tables.output_ = output;
      tables.whole_parameters_ = entry.parameters;
    }
    for (int gpu = 0; gpu < static_cast<int>(gpus.size()); ++gpu)
      if (key[0] == gpu || (key[0] == static_cast<int>(gpus.size()) && !sizes.contains({gpu, key[1]})))
        tables.sizes_[{gpu, key[1]}] = entry;
  }
  if (tables.output_.empty())
    return fail(ErrorCode::not_found,
                fmt::format("the profile has no layer sizes of {} with tensor parallel 1 and sequence length {}",
                            model.name, job.sequence_length),
                "the cost model of the artifact needs them; import the published profiles or profile the model");

  // Every link zone of the profile gets an index after those of the cluster.
  const auto zone_index = [&](const std::string& name) {
    return static_cast<int>(std::find(tables.link_zones_.begin(), tables.link_zones_.end(), name) -
                            tables.link_zones_.begin());
  };
  for (const std::string& zone : zones) tables.link_zones_.push_back(profile.names_zone(zone) ? zone : default_zone);
  for (const LinkFit& fit : data.fits) {
    const LinkKey& key = fit.key;
    if (key.scope != LinkScope::inter_node || key.operation != LinkOperation::send_receive) continue;
    const int from = gpu_index(key.from.gpu);
    const int to = gpu_index(key.to.gpu);
    if (std::max(from, to) == static_cast<int>(gpus.size())) continue;
    const std::string from_zone = key.from.zone.empty() ? default_zone : key.from.zone;
    const std::string to_zone = key.to.zone.empty() ? default_zone : key.to.zone;
    const int sending = zone_index(from_zone);
    const int receiving = zone_index(to_zone);
    if (std::max(sending, receiving) == static_cast<int>(tables.link_zones_.size())) continue;
    const Curve curve{fit.curve.quadratic, fit.curve.linear, fit.curve.constant};
    const std::array<int, 6> place{from, sending, key.from.ranks, to, receiving, key.to.ranks};
    if (key.from.zone.empty())
      tables.links_.try_emplace(place, curve);
    else
      tables.links_[place] = curve;
    tables.max_senders_[from] = std::max(tables.max_senders_[from], key.from.ranks);
  }
  for (std::size_t zone = 0; zone < tables.link_zones_.size(); ++zone) {
    const int first = zone_index(tables.link_zones_[zone]);
    if (first == static_cast<int>(zone)) continue;
    std::map<std::array<int, 6>, Curve> more;
    for (const auto& [place, curve] : tables.links_)
      for (const bool sends : {true, false})
        for (const bool receives : {true, false}) {
          if ((sends && place[1] != first) || (receives && place[4] != first)) continue;
          std::array<int, 6> copy = place;
          if (sends) copy[1] = static_cast<int>(zone);
          if (receives) copy[4] = static_cast<int>(zone);
          more.emplace(copy, curve);
        }
    tables.links_.insert(more.begin(), more.end());
  }
  tables.index_links();
  return tables;
}

std::size_t Tables::end_of(int gpu, int zone, int senders) const {
  return (static_cast<std::size_t>(gpu) * zones_.size() + zone) * kinds_of_senders_ + senders_[senders];
}

void Tables::index_links() {
  std::vector<std::string_view> known;
  for (const std::string& zone : zones_) {
    const auto place = std::find(known.begin(), known.end(), region_of(zone));
    regions_.push_back(static_cast<int>(place - known.begin()));
    if (place == known.end()) known.push_back(region_of(zone));
  }
  std::set<int> numbers;
  for (const auto& [place, curve] : links_) {
    numbers.insert(place[2]);
    numbers.insert(place[5]);
  }
  if (numbers.empty()) return;
  senders_.assign(*numbers.rbegin() + 1, -1);
  for (const int number : numbers) senders_[number] = static_cast<int>(kinds_of_senders_++);
  const std::size_t ends = gpus_.size() * zones_.size() * kinds_of_senders_;
  links_by_end_.assign(ends * ends, nullptr);
  for (const auto& [place, curve] : links_)
    if (std::max(place[1], place[4]) < static_cast<int>(zones_.size()))
      links_by_end_[end_of(place[0], place[1], place[2]) * ends + end_of(place[3], place[4], place[5])] = &curve;
}

const Times* Tables::times(int gpu, int micro_batch, int tensor_parallel) const {
  const auto found = times_.find({gpu, micro_batch, tensor_parallel});
  return found == times_.end() ? nullptr : &found->second;
}

const Sizes* Tables::sizes(int gpu, int tensor_parallel) const {
  const auto found = sizes_.find({gpu, tensor_parallel});
  return found == sizes_.end() ? nullptr : &found->second;
}

std::vector<int> Tables::micro_batches() const {
  std::set<int> found;
  for (const auto& [key, times] : times_) found.insert(key[1]);
  return {found.begin(), found.end()};
}

std::vector<int> Tables::degrees(int gpu, int micro_batch) const {
  std::vector<int> found;
  for (const auto& [key, times] : times_)
    if (key[0] == gpu && key[1] == micro_batch && sizes(gpu, key[2]) != nullptr) found.push_back(key[2]);
  return found;
}

const Curve* Tables::link(int from_gpu, int from_zone, int from_degree, int to_gpu, int to_zone, int to_degree) const {
  const int sending = std::min(from_degree, max_senders_[from_gpu]);
  const int receiving = std::min(to_degree, max_senders_[to_gpu]);
  if (std::max(sending, receiving) >= static_cast<int>(senders_.size()) || senders_[sending] < 0 ||
      senders_[receiving] < 0)
    return nullptr;
  const std::size_t ends = gpus_.size() * zones_.size() * kinds_of_senders_;
  return links_by_end_[end_of(from_gpu, from_zone, sending) * ends + end_of(to_gpu, to_zone, receiving)];
}

double Tables::egress_price(int from_zone, int to_zone) const {
  if (from_zone == to_zone) return 0.0;
  return (regions_[from_zone] == regions_[to_zone] ? 0.01 : 0.02) / bytes_per_gb;
}

double Tables::gradient_bytes(const LayerRange& layers) const {
  return (whole_parameters_[layers.last] - whole_parameters_[layers.first]) * bytes_per_float;
}

double Tables::memory_needed(const Sizes& sizes, int tensor_parallel, const LayerRange& layers, int in_flight,
                             int micro_batch) const {
  return state_bytes_per_parameter * (sizes.parameters[layers.last] - sizes.parameters[layers.first]) +
         static_cast<double>(micro_batch) * in_flight *
             (sizes.activations[layers.last] - sizes.activations[layers.first]) +
         base_memory(tensor_parallel);
}

Result<ArtifactScore> evaluate(const Pipelines& pipelines, const Tables& tables) {
  const int stages = static_cast<int>(pipelines.stages.size());
  const int replicas = pipelines.replicas;
  const int micro_batch = pipelines.micro_batch;
  const int batches = (tables.global_batch() + micro_batch * replicas - 1) / (micro_batch * replicas);
  ArtifactScore score;
  double slowest = 0.0;
  double total = 0.0;
  double update = 0.0;
  double reduction = 0.0;
  double egress = 0.0;
  double price = 0.0;
  double peak = 0.0;
  for (int i = 0; i < stages; ++i) {
    const StageRuns& stage = pipelines.stages[i];
    double compute = 0.0;
    int degree = 4;
    for (const Run& run : stage.runs) {
      const Times* times = tables.times(run.gpu, micro_batch, run.tensor_parallel);
      const Sizes* sizes = tables.sizes(run.gpu, run.tensor_parallel);
      if (times == nullptr || sizes == nullptr)
        return fail(
            ErrorCode::not_found,
            fmt::format("the profile has no {} of {} with micro-batch {} and tensor parallel {}",
                        times == nullptr ? "times" : "sizes", tables.gpus()[run.gpu], micro_batch, run.tensor_parallel),
            "the cost model of the artifact does not interpolate");
      compute = std::max(compute, times->compute[stage.layers.last] - times->compute[stage.layers.first]);
      update = std::max(update, times->update[stage.layers.first]);
      degree = std::min(degree, run.tensor_parallel);
      price += tables.price(run.gpu) * run.tensor_parallel * run.count;
      const double memory = tables.memory_needed(*sizes, run.tensor_parallel, stage.layers, stages - i, micro_batch);
      peak = std::max(peak, memory);
      score.fits = score.fits && memory <= tables.memory(run.gpu);
    }
    // Messages to the next stage and back to the previous one.
    const double forward_bytes = tables.output_bytes(stage.layers.last - 1) * micro_batch;
    const double backward_bytes = tables.output_bytes(stage.layers.first) * micro_batch;
    double transfer = 0.0;
    if (i + 1 < stages) {
      auto send = slowest_send(tables, stage.runs, pipelines.stages[i + 1].runs, forward_bytes);
      SAILOR_CHECK(send);
      transfer += i == 0 && stages > 3 ? 2.0 * *send : *send;
      visit_pairs(stage.runs, pipelines.stages[i + 1].runs, [&](const Run& a, const Run& b, int count) {
        egress += 2.0 * batches * count * tables.egress_price(a.zone, b.zone) * forward_bytes;
      });
    }
    if (i > 0) {
      auto send = slowest_send(tables, stage.runs, pipelines.stages[i - 1].runs, backward_bytes);
      SAILOR_CHECK(send);
      transfer += i + 1 == stages ? 2.0 * *send : *send;
    }
    slowest = std::max(slowest, compute + transfer);
    total += compute + transfer;
    // The ring of the gradients; the closing link counts for money only.
    const double gradients = tables.gradient_bytes(stage.layers);
    const double ring_bytes = gradients / replicas * 2.0 * (replicas - 1);
    for (std::size_t r = 0; r < stage.runs.size(); ++r) {
      const Run& run = stage.runs[r];
      const Run& next = stage.runs[(r + 1) % stage.runs.size()];
      egress += tables.egress_price(run.zone, next.zone) * ring_bytes;
      std::vector<const Run*> receivers;
      if (run.count > 1) receivers.push_back(&run);
      if (r + 1 < stage.runs.size()) receivers.push_back(&next);
      for (const Run* receiver : receivers) {
        const Curve* curve = tables.link(run.gpu, run.zone, 1, receiver->gpu, receiver->zone, 1);
        if (curve == nullptr) return no_link(tables, run, *receiver);
        reduction = std::max(reduction, bucketed_all_reduce(gradients / degree, replicas, *curve));
      }
    }
  }
  const double pipeline = (batches - 1) * slowest + total + update;
  score.pipeline_time = Seconds(pipeline);
  score.synchronization_time = Seconds(reduction);
  score.iteration_time = Seconds(pipeline + reduction);
  score.egress_cost_per_iteration = Usd(egress);
  score.cost_per_iteration = Usd(price * (pipeline + reduction) + egress);
  score.peak_memory = Bytes(peak);
  return score;
}

double memory_headroom(const Pipelines& pipelines, const Tables& tables) {
  double least = 1.0;
  const int stages = static_cast<int>(pipelines.stages.size());
  for (int i = 0; i < stages; ++i)
    for (const Run& run : pipelines.stages[i].runs)
      if (const Sizes* sizes = tables.sizes(run.gpu, run.tensor_parallel))
        least = std::min(least, 1.0 - tables.memory_needed(*sizes, run.tensor_parallel, pipelines.stages[i].layers,
                                                           stages - i, pipelines.micro_batch) /
                                          tables.memory(run.gpu));
  return least;
}

}  // namespace sailor::planner::artifact
