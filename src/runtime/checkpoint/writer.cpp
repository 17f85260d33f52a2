#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/files.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checksum.hpp"
#include "runtime/checkpoint/folder.hpp"
#include "runtime/checkpoint/owner.hpp"
#include "runtime/state_pieces.hpp"

namespace sailor::runtime {

namespace fs = std::filesystem;

namespace {

std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A parameter of which this rank writes a part.
struct ShardTensor {
  int layer = 0;
  std::string name;
  Shape shape;  // of the whole
};

/// A rank's part of a checkpoint, in host memory. The file is `data`: the values of all pieces, then all first moments,
/// then all second moments.
struct ShardCopy {
  std::vector<ShardTensor> tensors;
  std::vector<std::pair<std::size_t, Range>> pieces;  // index of the tensor, elements of the whole
  std::int64_t elements = 0;                          // of all pieces
  std::unique_ptr<float[]> data;                      // 3 * elements
};

/// Returns the result of `work`, or what it throws as an error.
template <class Work>
auto guarded(const Work& work) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::failure, "out of memory");
  } catch (const std::exception& error) {
    return fail(ErrorCode::failure, fmt::format("unexpected: {}", error.what()));
  } catch (...) {
    return fail(ErrorCode::failure, "unexpected exception of unknown type");
  }
}

template <class T>
std::future<Result<T>> ready(Result<T> result) {
  std::promise<Result<T>> promise;
  promise.set_value(std::move(result));
  return promise.get_future();
}

template <class T, class Work>
std::future<Result<T>> in_background(Work work) {
  try {
    return std::async(std::launch::async, [work = std::move(work)]() mutable {
      // Training has priority if a rank has one core. On Linux this sets the thread's priority; failure changes
      // nothing.
      static_cast<void>(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 10));
      return guarded(work);
    });
  } catch (const std::system_error& error) {
    return ready<T>(fail(ErrorCode::unavailable, fmt::format("cannot start a thread: {}", error.what())));
  }
}

template <class T>
bool is_ready(const std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

/// Copies the elements to write. Errors: elements without moments.
Result<ShardCopy> take(Device& device, ParameterStorage& storage, AdamW& optimizer, const std::vector<Range>& written) {
  ShardCopy shard;
  const std::vector<OwnPiece> own = own_pieces(declarations_of(storage), written);
  for (const OwnPiece& piece : own) shard.elements += piece.piece.count;
  shard.data = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(3 * shard.elements));
  const auto copy = [&](std::int64_t to, const float* from, std::int64_t count) {
    device.main().copy_to_host(shard.data.get() + to, from, static_cast<std::size_t>(count) * sizeof(float));
  };
  std::int64_t at = 0;
  std::size_t last = storage.parameters().size();
  for (const OwnPiece& piece : own) {
    const Parameter& parameter = *storage.parameters()[piece.parameter];
    if (piece.parameter != last) shard.tensors.push_back({parameter.layer, parameter.name, whole_shape(parameter)});
    last = piece.parameter;
    const auto [whole, local, count] = piece.piece;
    shard.pieces.push_back({shard.tensors.size() - 1, {whole, whole + count}});
    const float* const masters = optimizer.master_values();
    if (masters == nullptr) copy(at, parameter.value.floats() + local, count);
    const std::int64_t found =
        for_moments(optimizer, piece.parameter, {local, local + count},
                    [&, start = local](std::int64_t first, std::int64_t part, std::int64_t moment) {
                      if (masters != nullptr) copy(at + first - start, masters + moment, part);
                      copy(shard.elements + at + first - start, optimizer.first_moments() + moment, part);
                      copy(2 * shard.elements + at + first - start, optimizer.second_moments() + moment, part);
                    });
    if (found != count)
      return fail(ErrorCode::failure, fmt::format("layer {}, {}: the optimizer of this rank steps {} of {} elements "
                                                  "that it is to write",
                                                  parameter.layer, parameter.name, found, count));
    at += count;
  }
  device.synchronize();
  return shard;
}

/// Result of a rank's writing, as reported to the other ranks.
struct ShardReport {
  std::string written{};  // contents of its file, as JSON
  std::string problem{};  // why it has no file
  bool not_finite = false;

  [[nodiscard]] std::string text(const std::string& host) const {
    return text_of({{"written", written},
                    {"problem", problem.empty() ? problem : fmt::format("({}): {}", host, problem)},
                    {"not_finite", not_finite}});
  }
  static ShardReport parse(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text);
    return {.written = json.at("written"), .problem = json.at("problem"), .not_finite = json.at("not_finite")};
  }
};

/// "the second moment of layer 3, norm1.bias, is not finite"; empty if all values are finite. A value that is not
/// finite never becomes finite again.
std::string what_is_not_finite(const ShardCopy& shard) {
  const float* data = shard.data.get();
  for (const StoredArray array : stored_arrays)
    for (const auto& [tensor, range] : shard.pieces) {
      constexpr std::uint32_t exponent = 0x7f800000;  // all ones: infinity or NaN
      bool bad = false;
      for (std::int64_t i = 0; i < range.size(); ++i)
        bad |= (std::bit_cast<std::uint32_t>(data[i]) & exponent) == exponent;
      if (bad)
        return fmt::format("the {} of layer {}, {}, has a value that is not finite", to_string(array),
                           shard.tensors[tensor].layer, shard.tensors[tensor].name);
      data += range.size();
    }
  return {};
}

/// Reads the file back from storage, and compares it with what was written.
Result<void> verify_shard(const ShardCopy& shard, const fs::path& path) {
  auto file = File::open(path);
  if (!file) return fail(file.error());
  file->forget_cached();
  const auto size = file->size();
  if (!size) return fail(size.error());
  const std::int64_t bytes = 3 * shard.elements * static_cast<std::int64_t>(sizeof(float));
  if (*size != bytes)
    return fail(ErrorCode::io, fmt::format("'{}' has {} bytes, but {} were written", path.string(), *size, bytes));
  std::vector<char> part(static_cast<std::size_t>(std::min<std::int64_t>(bytes, std::int64_t{4} << 20)));
  for (std::int64_t at = 0; at < bytes; at += std::ssize(part)) {
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(part), bytes - at));
    SAILOR_CHECK(file->read(at, part.data(), count));
    if (std::memcmp(part.data(), reinterpret_cast<const char*>(shard.data.get()) + at, count) != 0)
      return fail(ErrorCode::io, fmt::format("'{}' does not hold what was written to it, between bytes {} and {}",
                                             path.string(), at, at + static_cast<std::int64_t>(count)));
  }
  return {};
}

/// Writes the file and returns its contents, as JSON. A rank without elements has no file.
Result<std::string> write_shard(const ShardCopy& shard, const fs::path& checkpoint, int rank) {
  const auto began = std::chrono::steady_clock::now();
  nlohmann::json tensors = nlohmann::json::array();
  for (const ShardTensor& tensor : shard.tensors)
    tensors.push_back(
        {{"layer", tensor.layer}, {"name", tensor.name}, {"shape", tensor.shape}, {"pieces", nlohmann::json::array()}});
  const std::int64_t bytes = 3 * shard.elements * static_cast<std::int64_t>(sizeof(float));
  if (shard.elements > 0) {
    // Rank 0 has created it already; this call makes a network file system ask the server instead of its cache.
    ::mkdir(checkpoint.c_str(), 0777);
    auto file = File::create(checkpoint / shard_name(rank));
    if (!file) return fail(file.error());
    std::int64_t element = 0;
    for (const StoredArray array : stored_arrays)
      for (const auto& [tensor, range] : shard.pieces) {
        const float* data = shard.data.get() + element;
        const std::size_t size = static_cast<std::size_t>(range.size()) * sizeof(float);
        tensors[tensor]["pieces"].push_back({static_cast<int>(array), range.first, range.size(),
                                             element * static_cast<std::int64_t>(sizeof(float)), checksum(data, size)});
        auto written = file->append(data, size);
        if (!written) {
          std::error_code ignored;
          fs::remove(file->path(), ignored);  // makes room
          return fail(written.error());
        }
        element += range.size();
      }
    SAILOR_CHECK(file->finish());
    SAILOR_CHECK(sync_folder(checkpoint));
    SAILOR_CHECK(verify_shard(shard, checkpoint / shard_name(rank)));
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - began;
  return text_of({{"bytes", bytes}, {"time_s", time.count()}, {"tensors", std::move(tensors)}});
}

/// Adds what a rank has written to the manifest.
void add_shard(Manifest& manifest, const nlohmann::json& shard, int rank) {
  const auto bytes = shard.at("bytes").get<std::int64_t>();
  if (bytes == 0) return;
  const std::size_t file = manifest.files.size();
  manifest.files.push_back({.name = shard_name(rank), .bytes = bytes});
  manifest.write_time_s = std::max(manifest.write_time_s.value_or(0.0), shard.at("time_s").get<double>());
  for (const nlohmann::json& entry : shard.at("tensors")) {
    const auto layer = entry.at("layer").get<int>();
    const auto name = entry.at("name").get<std::string>();
    auto tensor = std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                               [&](const StoredTensor& other) { return other.layer == layer && other.name == name; });
    if (tensor == manifest.tensors.end())
      tensor = manifest.tensors.insert(tensor, {.layer = layer, .name = name, .shape = entry.at("shape").get<Shape>()});
    for (const nlohmann::json& piece : entry.at("pieces"))
      tensor->of(static_cast<StoredArray>(piece.at(0).get<int>()))
          .push_back({.first = piece.at(1).get<std::int64_t>(),
                      .count = piece.at(2).get<std::int64_t>(),
                      .file = file,
                      .offset = piece.at(3).get<std::int64_t>(),
                      .checksum = piece.at(4).get<std::uint64_t>()});
  }
}

/// The work of rank 0 after all ranks have written.
struct Ending {
  fs::path folder;
  fs::path checkpoint;
  int keep = 0;
  std::int64_t iteration = 0;
  std::string host;
  CheckpointFacts facts;
  std::vector<ShardReport> reports;  // by rank
  FolderOwner* owner = nullptr;      // null: the owner of the folder is not checked

  [[nodiscard]] Result<void> confirm() const { return owner != nullptr ? owner->confirm() : Result<void>(); }
};

struct Ended {
  std::int64_t bytes = 0;
  std::string warning;
};

Result<Ended> write_manifest(const Ending& ending) {
  SAILOR_CHECK(ending.confirm());
  Manifest manifest{.iteration = ending.iteration,
                    .model = ending.facts.model.name,
                    .architecture = architecture_of(ending.facts.model),
                    .training = ending.facts.training,
                    .source = fmt::format("trained by {} on {}", plural(ending.reports.size(), "rank"), ending.host)};
  const auto sequence = next_sequence(ending.folder);
  if (!sequence) return fail(sequence.error());
  manifest.sequence = *sequence;
  for (std::size_t rank = 0; rank < ending.reports.size(); ++rank)
    add_shard(manifest, nlohmann::json::parse(ending.reports[rank].written), static_cast<int>(rank));
  const std::string& plan = ending.facts.plan;
  auto plan_file = File::create(ending.checkpoint / plan_name);
  if (!plan_file) return fail(plan_file.error());
  SAILOR_CHECK(plan_file->append(plan.data(), plan.size()));
  SAILOR_CHECK(plan_file->finish());
  manifest.files.push_back({.name = plan_name,
                            .bytes = static_cast<std::int64_t>(plan.size()),
                            .checksum = checksum(plan.data(), plan.size())});
  SAILOR_CHECK(complete_manifest(manifest));
  std::int64_t elements = 0;
  for (const StoredTensor& tensor : manifest.tensors) elements += tensor.elements();
  if (elements != ending.facts.model.total_parameters())
    return fail(ErrorCode::failure, fmt::format("the ranks wrote {} parameters, but the model has {}", elements,
                                                ending.facts.model.total_parameters()));
  // Each rank has compared its file with what it wrote; this checks that rank 0 sees all of the files, too.
  SAILOR_CHECK(check_files(ending.checkpoint, manifest));
  SAILOR_CHECK(ending.confirm());
  const auto sealed = create_file_atomically(ending.checkpoint / manifest_name, manifest_text(manifest));
  if (!sealed) return fail(sealed.error());
  if (!*sealed) return fail(ErrorCode::failure, fmt::format("'{}' has a manifest already", ending.checkpoint.string()));
  forget_writer(ending.checkpoint);
  SAILOR_CHECK(sync_folder(ending.folder));
  Ended ended{.bytes = manifest.bytes()};
  if (const auto removed =
          remove_old_checkpoints(ending.folder, ending.checkpoint, ending.keep, [&] { return ending.confirm(); });
      !removed)
    ended.warning = removed.error().message();
  return ended;
}

Result<Ended> end_checkpoint(const Ending& ending) {
  std::size_t failed = 0;
  std::string first;
  for (std::size_t rank = 0; rank < ending.reports.size(); ++rank)
    if (!ending.reports[rank].problem.empty() && failed++ == 0)
      first = fmt::format("rank {} {}", rank, ending.reports[rank].problem);
  Result<Ended> ended;
  if (failed > 0)
    ended =
        fail(ErrorCode::io, failed == 1 ? first : fmt::format("{} (and {} more)", first, plural(failed - 1, "rank")));
  else
    ended = guarded([&] { return write_manifest(ending); });
  if (ended) return ended;
  const bool is_lost = ending.owner != nullptr && ending.owner->is_lost();
  if (!ending.checkpoint.empty() && !is_lost)
    static_cast<void>(remove_checkpoint(ending.checkpoint));  // best effort: makes room
  Error error = ended.error();
  error.what = fmt::format("the checkpoint of iteration {} was not written: {}", ending.iteration, error.what);
  if (error.hint.empty()) error.hint = "make room or name another folder; older checkpoints are as they were";
  return fail(std::move(error));
}

}  // namespace

struct CheckpointWriter::State {
  enum class Phase { idle, shards, manifest };

  Device& device;
  fs::path folder;
  int keep = 0;
  Phase phase = Phase::idle;
  std::int64_t iteration = 0;
  fs::path checkpoint;
  FolderOwner* owner = nullptr;  // rank 0's
  CheckpointFacts facts;         // rank 0's
  std::future<Result<ShardReport>> shard;
  bool not_finite = false;            // some rank has such values in the checkpoint under way
  std::future<Result<Ended>> ending;  // on rank 0
};

CheckpointWriter::CheckpointWriter(Device& device, fs::path folder, int keep, FolderOwner* owner)
    : state_(new State{.device = device, .folder = std::move(folder), .keep = keep, .owner = owner}) {}

CheckpointWriter::~CheckpointWriter() { abandon(); }

bool CheckpointWriter::is_under_way() const { return state_->phase != State::Phase::idle; }

void CheckpointWriter::abandon() noexcept {
  if (state_->shard.valid()) state_->shard.wait();
  if (state_->ending.valid()) state_->ending.wait();
  state_->shard = {};
  state_->ending = {};
  state_->phase = State::Phase::idle;
}

std::optional<CheckpointOutcome> CheckpointWriter::begin(Control& world, std::int64_t iteration,
                                                         ParameterStorage& storage, AdamW& optimizer,
                                                         const std::vector<Range>& written,
                                                         const CheckpointFacts& facts) {
  std::optional<CheckpointOutcome> before = finish(world);
  State& state = *state_;
  Result<fs::path> made = fs::path();
  if (world.rank() == 0) {
    made = guarded([&]() -> Result<fs::path> {
      if (state.owner != nullptr) SAILOR_CHECK(state.owner->confirm());
      SAILOR_CHECK(make_folder(state.folder));
      SAILOR_CHECK(remove_interrupted(state.folder, [&](std::string_view token) {
        return state.owner != nullptr && state.owner->has_inherited(token);
      }));
      return make_checkpoint_folder(state.folder, iteration, state.owner != nullptr ? state.owner->token() : "");
    });
    state.facts = facts;
  }
  state.iteration = iteration;
  state.checkpoint = world.broadcast(made ? made->native() : std::string());
  state.phase = State::Phase::shards;
  if (state.checkpoint.empty()) {
    state.shard = ready<ShardReport>(made ? Result<ShardReport>(ShardReport()) : fail(made.error()));
    return before;
  }
  auto shard = guarded([&] { return take(state.device, storage, optimizer, written); });
  if (!shard) {
    state.shard = ready<ShardReport>(fail(shard.error()));
    return before;
  }
  state.shard = in_background<ShardReport>(
      [taken = std::move(*shard), checkpoint = state.checkpoint, rank = world.rank()]() -> Result<ShardReport> {
        if (std::string problem = what_is_not_finite(taken); !problem.empty())
          return ShardReport{.problem = std::move(problem), .not_finite = true};
        auto written = write_shard(taken, checkpoint, rank);
        if (!written) return fail(written.error());
        return ShardReport{.written = *std::move(written)};
      });
  return before;
}

std::optional<CheckpointOutcome> CheckpointWriter::progress(Control& world) {
  State& state = *state_;
  if (state.phase == State::Phase::idle) return std::nullopt;
  const bool mine =
      state.phase == State::Phase::shards ? is_ready(state.shard) : world.rank() != 0 || is_ready(state.ending);
  if (world.min(mine ? 1.0 : 0.0) < 1.0) return std::nullopt;

  if (state.phase == State::Phase::shards) {
    const Result<ShardReport> result = state.shard.get();
    const ShardReport report = result ? *result : ShardReport{.problem = result.error().message()};
    state.not_finite = world.max(report.not_finite ? 1.0 : 0.0) > 0.0;
    const std::vector<std::string> texts = world.gather(report.text(world.host()));
    std::vector<ShardReport> reports;
    for (const std::string& text : texts) reports.push_back(ShardReport::parse(text));
    if (world.rank() == 0)
      state.ending = in_background<Ended>([ending = Ending{.folder = state.folder,
                                                           .checkpoint = state.checkpoint,
                                                           .keep = state.keep,
                                                           .iteration = state.iteration,
                                                           .host = world.host(),
                                                           .facts = std::move(state.facts),
                                                           .reports = std::move(reports),
                                                           .owner = state.owner}] { return end_checkpoint(ending); });
    state.phase = State::Phase::manifest;
    return std::nullopt;
  }

  nlohmann::json told;
  if (world.rank() == 0) {
    const Result<Ended> ended = state.ending.get();
    told = ended ? nlohmann::json{{"bytes", ended->bytes}, {"warning", ended->warning}}
                 : nlohmann::json{{"code", static_cast<int>(ended.error().code)},
                                  {"what", ended.error().what},
                                  {"hint", ended.error().hint}};
    told["taken_over"] = state.owner != nullptr && state.owner->is_lost();
  }
  told = nlohmann::json::parse(world.broadcast(text_of(told)));
  state.phase = State::Phase::idle;
  CheckpointOutcome outcome{.iteration = state.iteration,
                            .folder = state.checkpoint,
                            .not_finite = std::exchange(state.not_finite, false),
                            .taken_over = told.at("taken_over").get<bool>()};
  if (told.contains("what")) {
    outcome.written = fail(static_cast<ErrorCode>(told.at("code").get<int>()), told.at("what").get<std::string>(),
                           told.at("hint").get<std::string>());
  } else {
    outcome.bytes = Bytes(told.at("bytes").get<double>());
    outcome.warning = told.at("warning").get<std::string>();
  }
  return outcome;
}

std::optional<CheckpointOutcome> CheckpointWriter::finish(Control& world) {
  while (is_under_way()) {
    if (auto outcome = progress(world)) return outcome;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::nullopt;
}

Result<void> write_imported_checkpoint(const fs::path& folder, const Model& model, const std::string& source,
                                       const std::vector<WholeTensor>& tensors,
                                       const std::function<Result<std::vector<float>>(const WholeTensor&)>& values) {
  const fs::path path = folder.filename().empty() ? folder.parent_path() : folder;
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  SAILOR_CHECK(create_folders(parent));
  if (::mkdir(path.c_str(), 0777) != 0) {
    const int number = errno;
    return fail(ErrorCode::io, fmt::format("cannot make the folder '{}': {}", path.string(), system_message(number)),
                number == EEXIST ? "name a folder that is not there yet" : "write somewhere else");
  }
  const auto write = [&]() -> Result<void> {
    Manifest manifest{.model = model.name, .architecture = architecture_of(model), .source = source};
    const auto sequence = next_sequence(parent);
    if (!sequence) return fail(sequence.error());
    manifest.sequence = *sequence;
    auto file = File::create(path / shard_name(0));
    if (!file) return fail(file.error());
    std::int64_t offset = 0;
    for (const WholeTensor& tensor : tensors) {
      const Result<std::vector<float>> data = values(tensor);
      if (!data) return fail(data.error());
      StoredTensor& stored = manifest.tensors.emplace_back();
      stored.layer = tensor.layer;
      stored.name = tensor.name;
      stored.shape = tensor.shape;
      for (std::int64_t first = 0; first < std::ssize(*data); first += largest_piece) {
        StoredPiece piece{
            .first = first, .count = std::min(largest_piece, std::ssize(*data) - first), .offset = offset};
        const auto size = static_cast<std::size_t>(piece.bytes());
        piece.checksum = checksum(data->data() + first, size);
        SAILOR_CHECK(file->append(data->data() + first, size));
        stored.of(StoredArray::value).push_back(piece);
        offset += piece.bytes();
      }
    }
    SAILOR_CHECK(file->finish());
    manifest.files.push_back({.name = shard_name(0), .bytes = offset});
    SAILOR_CHECK(complete_manifest(manifest));
    SAILOR_CHECK(write_file_atomically(path / manifest_name, manifest_text(manifest)));
    return sync_folder(parent);
  };
  Result<void> written = guarded(write);
  if (!written) static_cast<void>(remove_checkpoint(path));  // best effort
  return written;
}

}  // namespace sailor::runtime
