#include "profile/traces/import_training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "cluster/gpu_match.hpp"
#include "core/statistics.hpp"
#include "core/text.hpp"
#include "profile/traces/gzip_stream.hpp"
#include "profile/traces/megatron_timers.hpp"
#include "profile/traces/nsys_export.hpp"
#include "profile/traces/torch_trace.hpp"

namespace sailor::traces {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 3> form_names{"torch-trace", "megatron-timers", "nsys-sqlite"};
constexpr std::array<std::string_view, 3> tools{"torch.profiler", "Megatron-LM's timers", "NVIDIA Nsight Systems"};

/// The GPU type of the options, else the one that the device's name says.
Result<GpuType> gpu_of(const RecordingOptions& options, const std::string& device, std::string_view file) {
  const GpuType* named = device.empty() ? nullptr : match_device(options.gpus, device, std::nullopt);
  if (options.gpu.empty()) {
    if (named != nullptr) return *named;
    return fail(ErrorCode::usage,
                fmt::format("{}: the file {}", file,
                            device.empty() ? "does not name the device"
                                           : fmt::format("is of a device '{}', which may be several GPU types or none "
                                                         "of the catalogue",
                                                         device)),
                "name it with --gpu");
  }
  auto gpu = options.gpus.find(options.gpu);
  if (!gpu) return gpu;
  if (named != nullptr && named->name != gpu->name)
    return fail(
        ErrorCode::invalid_input,
        fmt::format("{}: the file is of a device '{}', which is a {}, no {}", file, device, named->name, gpu->name),
        "leave out --gpu");
  return gpu;
}

Result<Recording> read_recording(const fs::path& file, RecordingForm form) {
  if (form == RecordingForm::nsys_sqlite) return read_nsys_export(file);
  auto stream = GzipStream::open(file);
  if (!stream) return fail(stream.error());
  auto recording = read_torch_trace(stream->stream(), file.string());
  if (const std::string problem = stream->problem(); !problem.empty())
    return fail(ErrorCode::invalid_input, fmt::format("{}: gzip: {}", file.string(), problem),
                "the file is damaged or was cut off: export or copy it again");
  return recording;
}

/// Rows of several stages that hold for the same layers become one, whose interval holds all of theirs.
std::vector<LayerTime> with_equal_keys_joined(const std::vector<LayerTime>& rows) {
  std::map<LayerKey, std::vector<const LayerTime*>> by_key;
  for (const LayerTime& row : rows) by_key[row.key].push_back(&row);
  std::vector<LayerTime> result;
  for (const auto& [key, same] : by_key) {
    LayerTime joined = *same.front();
    for (TimeStatistics LayerTime::*member : {&LayerTime::forward, &LayerTime::backward, &LayerTime::update}) {
      std::vector<double> medians;
      TimeStatistics& times = joined.*member;
      times.samples = 0;
      for (const LayerTime* row : same) {
        const TimeStatistics& other = row->*member;
        medians.push_back(other.median.value());
        times.p10 = std::min(times.p10, other.p10);
        times.p90 = std::max(times.p90, other.p90);
        times.low = std::min(times.low, other.low);
        times.high = std::max(times.high, other.high);
        times.samples += other.samples;
      }
      times.median = Seconds(quantile(medians, 0.5));
    }
    result.push_back(std::move(joined));
  }
  return result;
}

ProfileData profile_of(std::vector<LayerTime> times, Session session) {
  ProfileData data;
  data.layer_times = std::move(times);
  std::stable_sort(data.layer_times.begin(), data.layer_times.end(),
                   [](const LayerTime& a, const LayerTime& b) { return a.key < b.key; });
  data.sessions.push_back(std::move(session));
  return data;
}

/// The part of Session::notes that says what the rows are of.
std::string files_note(const std::vector<fs::path>& files, const Training& training) {
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(valid_utf8(file.filename().string()));
  return fmt::format("from {}; layers {} to {} of {}", join(names, ", "), training.layers.first,
                     training.layers.last - 1, training.model.name);
}

Result<ProfileData> import_megatron(const std::vector<fs::path>& files, const RecordingOptions& options) {
  if (files.size() != 1)
    return fail(ErrorCode::usage, fmt::format("{} logs of Megatron-LM at once", files.size()),
                "import one after the other");
  const std::string file = files.front().string();
  auto stream = GzipStream::open(files.front());
  if (!stream) return fail(stream.error());
  const auto timers = read_megatron_timers(stream->stream(), options.model, options.given, file);
  if (!timers) return fail(timers.error());
  const auto gpu = gpu_of(options, {}, file);
  if (!gpu) return fail(gpu.error());
  std::vector<LayerTime> times;
  Session session;
  std::string notes;
  for (const MegatronStage& stage : timers->stages) {
    TrainingFacts facts = timers->facts;
    facts.layers = stage.layers;
    const auto training = training_of(options.model, *gpu, facts, options.kernels, options.busy_ranks, file);
    if (!training) return fail(training.error());
    const auto rows = rows_of(*training, stage.iterations);
    if (!rows) return fail(rows.error());
    times.insert(times.end(), rows->times.begin(), rows->times.end());
    notes += fmt::format("{}{}; {}", notes.empty() ? "" : "; ", files_note(files, *training), join(rows->notes, "; "));
  }
  if (timers->left_out > 0)
    notes += fmt::format("; the first {} left out", timers->left_out == 1 ? "iteration" : "iterations");
  session.provenance.tool = tools[static_cast<std::size_t>(RecordingForm::megatron_timers)];
  session.notes = std::move(notes);
  return profile_of(with_equal_keys_joined(times), std::move(session));
}

}  // namespace

std::string_view to_string(RecordingForm form) { return form_names[static_cast<std::size_t>(form)]; }

Result<std::optional<RecordingForm>> recognise_recording(const fs::path& file) {
  if (file.extension() == ".nsys-rep" || file.extension() == ".qdrep")
    return fail(ErrorCode::invalid_input, fmt::format("{}: this is a report of nsys, not its export", file.string()),
                fmt::format("export it first: nsys export --type sqlite {}", file.string()));
  auto stream = GzipStream::open(file);
  if (!stream) return fail(stream.error());
  std::string start(std::size_t{1} << 16, '\0');
  stream->stream().read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(stream->stream().gcount()));
  if (start.starts_with("SQLite format 3")) return RecordingForm::nsys_sqlite;
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return std::nullopt;
  auto has = [&](std::string_view text) { return start.find(text) != std::string::npos; };
  if (start[first] == '{' || start[first] == '[') {
    const bool trace = has("\"traceEvents\"") || (has("\"schemaVersion\"") && has("\"deviceProperties\"")) ||
                       (start[first] == '[' && has("\"ph\""));
    return trace ? std::optional(RecordingForm::torch_trace) : std::nullopt;
  }
  if (file.extension() == ".toml") return std::nullopt;
  std::string line = start.substr(0, start.rfind('\n') + 1);
  do {
    if (line.find("forward-compute") != std::string::npos) return RecordingForm::megatron_timers;
  } while (std::getline(stream->stream(), line));
  return std::nullopt;
}

Result<ProfileData> import_recordings(const std::vector<fs::path>& files, RecordingForm form,
                                      const RecordingOptions& options) {
  if (form == RecordingForm::megatron_timers) return import_megatron(files, options);
  std::optional<GpuType> gpu;
  std::vector<RecordedTimes> recorded;
  Session session;
  std::set<std::string> hosts;
  TrainingFacts facts = options.given;
  for (const fs::path& file : files) {
    const std::string name = file.string();
    auto recording = read_recording(file, form);
    if (!recording) return fail(recording.error());
    auto found = gpu_of(options, recording->device, name);
    if (!found) return fail(found.error());
    if (gpu && gpu->name != found->name)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: this file is of a {}, the one before of a {}", name, found->name, gpu->name),
                  "import files of different devices one after the other");
    gpu = *std::move(found);
    const bool has_any = !recording->operations.empty() || !recording->annotations.empty();  // else measure() says so
    if (has_any && recording->kernels.empty() != (gpu->kind == DeviceKind::cpu))
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: {} but {} is a {}", name,
                              recording->kernels.empty() ? "the file has no kernels" : "the file has kernels of a GPU",
                              gpu->name, gpu->kind == DeviceKind::cpu ? "CPU" : "GPU"),
                  recording->kernels.empty() ? "record the GPU, too (ProfilerActivity.CUDA), or name a CPU with --gpu"
                                             : "name the GPU with --gpu");
    auto of_file = training_of(options.model, *gpu, facts, options.kernels, options.busy_ranks, name);
    if (!of_file) return fail(of_file.error());
    auto times = measure(*recording, blocks_in(options.model, of_file->layers), of_file->key.tensor_parallel, name);
    if (!times) return fail(times.error());
    if (times->recomputes && facts.recompute.value_or(Recompute::full) == Recompute::none)
      return fail(ErrorCode::invalid_input,
                  fmt::format("{}: blocks run their forward pass again within the backward pass", name),
                  "leave out --recompute none");
    if (times->recomputes && !facts.recompute) facts.recompute = Recompute::full;
    recorded.push_back(*std::move(times));
    if (!recording->host.empty()) hosts.insert(recording->host);
    if (session.provenance.device.empty()) session.provenance.device = recording->device;
    if (session.provenance.versions.empty()) session.provenance.versions = recording->versions;
  }
  const auto all = training_of(options.model, *gpu, facts, options.kernels, options.busy_ranks, files.front().string());
  if (!all) return fail(all.error());
  auto rows = rows_of(*all, recorded);
  if (!rows) return fail(rows.error());
  session.provenance.tool = tools[static_cast<std::size_t>(form)];
  session.provenance.host = join(hosts, ",");
  session.notes = fmt::format("{}; {}", files_note(files, *all), join(rows->notes, "; "));
  return profile_of(std::move(rows->times), std::move(session));
}

}  // namespace sailor::traces
