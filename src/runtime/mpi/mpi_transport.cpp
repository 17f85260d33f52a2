// Every wait polls MPI_Test: a blocking MPI call cannot have a deadline, and in Open MPI the survivors of a dead rank
// hang in it forever. All MPI calls are made by the calling thread.
#include "runtime/mpi/mpi_transport.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "core/process.hpp"
#include "core/text.hpp"
#include "runtime/bits16.hpp"
#include "runtime/host_transport.hpp"

namespace sailor::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int control_tag = 0;
constexpr int roll_call_tag = 1;
constexpr int first_channel_tag = 2;

/// State shared by all objects of a world.
struct Context {
  MpiSettings settings;
  std::string host;
  int world_rank = 0;
  std::atomic<bool> aborted = false;
  [[nodiscard]] Patience patience(bool idle = false) const {
    return {.timeout = settings.timeout, .idle = idle || settings.idle_waits};
  }
};
static_assert(std::atomic<bool>::is_always_lock_free);  // set by signal handlers

[[noreturn]] void fail_call(int code, const std::string& call) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(TransportError::Cause::broken,
                       fmt::format("{} failed: {}", call, std::string(text.data(), static_cast<std::size_t>(length))));
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail_call(code, call);
}

/// A communicator of MPI, freed with its owner.
class Handle {
 public:
  Handle(MPI_Comm communicator, std::string name) : communicator_(communicator), name_(std::move(name)) {}
  ~Handle() {
    if (communicator_ != MPI_COMM_WORLD) MPI_Comm_free(&communicator_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  [[nodiscard]] MPI_Comm get() const { return communicator_; }
  /// "ranks 0,2".
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int rank() const {
    int rank = 0;
    check(MPI_Comm_rank(communicator_, &rank), "MPI_Comm_rank");
    return rank;
  }
  [[nodiscard]] int size() const {
    int size = 0;
    check(MPI_Comm_size(communicator_, &size), "MPI_Comm_size");
    return size;
  }

  [[nodiscard]] std::shared_ptr<Handle> of_ranks(const std::vector<int>& ranks) const {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm made = MPI_COMM_NULL;
    check(MPI_Comm_group(communicator_, &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
    // Blocking, but between ranks that are all alive: they met in a barrier just before.
    check(MPI_Comm_create_group(communicator_, some, 0, &made), "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return std::make_shared<Handle>(made, fmt::format("ranks {}", join(ranks, ",")));
  }

 private:
  MPI_Comm communicator_;
  std::string name_;
};

struct OperationKind {
  bool is_collective = true;
  bool idle = false;
};

struct Nothing {
  void operator()() const {}
};

/// One MPI request. `begin(request)` starts it and returns MPI's error code; `then()` is called when it is done;
/// `what()` is called for messages only: "receive of an activation (4096 bytes) from rank 3".
template <class What, class Begin, class Then = Nothing>
class MpiOperation final : public HostOperation {
 public:
  MpiOperation(std::shared_ptr<const Context> context, std::shared_ptr<Handle> handle, OperationKind kind, What what,
               Begin begin, Then then = {})
      : context_(std::move(context)),
        handle_(std::move(handle)),
        kind_(kind),
        what_(std::move(what)),
        begin_(std::move(begin)),
        then_(std::move(then)) {}
  ~MpiOperation() override {
    if (request_ == MPI_REQUEST_NULL) return;
    // After abort(), or when an exception ends the rank. MPI cannot cancel a collective: its request is left behind.
    if (kind_.is_collective) return;
    MPI_Cancel(&request_);
    MPI_Request_free(&request_);
  }
  MpiOperation(const MpiOperation&) = delete;
  MpiOperation& operator=(const MpiOperation&) = delete;

  bool advance() override {
    if (context_->aborted.load(std::memory_order_relaxed))
      throw TransportError(TransportError::Cause::aborted, fmt::format("{} was broken off", what()));
    if (!begun_) {
      succeed(begin_(&request_));
      begun_ = true;
    }
    int done = 0;
    succeed(MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
    if (done != 0) then_();
    return done != 0;
  }
  std::string what() const override { return what_(); }
  Patience patience() const override { return context_->patience(kind_.idle); }

 private:
  void succeed(int code) const {
    if (code != MPI_SUCCESS) fail_call(code, what());
  }

  std::shared_ptr<const Context> context_;
  std::shared_ptr<Handle> handle_;
  OperationKind kind_;
  What what_;
  Begin begin_;
  Then then_;
  bool begun_ = false;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

/// MPI counts elements in an int: large messages are counted in bytes, then in pages.
struct Message {
  MPI_Datatype type;
  int count;
};

/// 4 KiB as one element. It lives as long as the process.
MPI_Datatype page_type() {
  static const MPI_Datatype type = [] {
    constexpr int page = 4096;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(page, MPI_BYTE, &made), "MPI_Type_contiguous");
    check(MPI_Type_commit(&made), "MPI_Type_commit");
    return made;
  }();
  return type;
}

Message message_of(std::size_t bytes) {
  constexpr std::size_t most = std::numeric_limits<int>::max();
  constexpr std::size_t page = 4096;
  if (bytes <= most) return {MPI_BYTE, static_cast<int>(bytes)};
  if (bytes % page != 0 || bytes / page > most)
    throw TransportError(TransportError::Cause::broken,
                         fmt::format("message of {} bytes: above 2 GiB only multiples of {} bytes can be sent; use a "
                                     "smaller micro-batch",
                                     bytes, page));
  return {page_type(), static_cast<int>(bytes / page)};
}

template <DataType type>
void add_of(void* from, void* to, int* count, MPI_Datatype* /*of_the_bits*/) {
  add_bits16(type, static_cast<std::uint16_t*>(to), static_cast<const std::uint16_t*>(from), *count);
}

MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::float32:
      return MPI_FLOAT;
    case DataType::bfloat16:  // unknown to MPI: their bits are sent as integers
    case DataType::float16:
      return MPI_UINT16_T;
    case DataType::float64:
      return MPI_DOUBLE;
    case DataType::int32:
      return MPI_INT32_T;
  }
  return MPI_BYTE;
}

MPI_Op sum_of(DataType type) {
  const auto make = [](MPI_User_function* add) {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(add, 1, &made), "MPI_Op_create");
    return made;
  };
  static const MPI_Op of_bfloat16 = make(add_of<DataType::bfloat16>);
  static const MPI_Op of_float16 = make(add_of<DataType::float16>);
  if (type == DataType::bfloat16) return of_bfloat16;
  return type == DataType::float16 ? of_float16 : MPI_SUM;
}

class MpiGroup final : public HostGroup {
 public:
  MpiGroup(std::shared_ptr<const Context> context, std::shared_ptr<Handle> handle)
      : context_(std::move(context)), handle_(std::move(handle)), rank_(handle_->rank()), size_(handle_->size()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<HostOperation> make_all_reduce_sum(Values data, std::int64_t count) override {
    return all_reduce("sum", data, count, sum_of(data.type));
  }
  std::unique_ptr<HostOperation> make_all_reduce_max(float* data, std::int64_t count) override {
    return all_reduce("maximum", data, count, MPI_MAX);
  }
  std::unique_ptr<HostOperation> make_all_gather(Values data, std::int64_t count) override {
    auto slices = std::make_shared<const Slices>(slices_of(count, "all-gather"));
    return make("all-gather", count, [slices, data, comm = handle_->get()](MPI_Request* request) {
      const MPI_Datatype type = mpi_type(data.type);
      return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, data.data, slices->counts.data(), slices->starts.data(), type, comm,
                             request);
    });
  }
  std::unique_ptr<HostOperation> make_reduce_scatter_sum(Values data, std::int64_t count) override {
    auto slices = std::make_shared<const Slices>(slices_of(count, "reduce-scatter"));
    const auto mine = static_cast<std::size_t>(rank_);
    return make(
        "reduce-scatter", count,
        [slices, data, comm = handle_->get()](MPI_Request* request) {
          return MPI_Ireduce_scatter(MPI_IN_PLACE, data.data, slices->counts.data(), mpi_type(data.type),
                                     sum_of(data.type), comm, request);
        },
        // MPI puts this rank's slice at the beginning.
        [slices, data, mine] {
          if (mine > 0)
            std::memmove((data + slices->starts[mine]).data, data.data, bytes_of(data.type, slices->counts[mine]));
        });
  }
  std::unique_ptr<HostOperation> make_all_to_all(ConstValues from, Values to, const SliceSizes& sizes) override {
    auto sent = std::make_shared<const Slices>(slices_of(sizes.sent, "all-to-all"));
    auto received = std::make_shared<const Slices>(slices_of(sizes.received, "all-to-all"));
    return make("all-to-all", sent->count, [from, to, sent, received, comm = handle_->get()](MPI_Request* request) {
      const MPI_Datatype type = mpi_type(to.type);
      return MPI_Ialltoallv(from.data, sent->counts.data(), sent->starts.data(), type, to.data, received->counts.data(),
                            received->starts.data(), type, comm, request);
    });
  }

 private:
  /// Every rank's slice of an array.
  struct Slices {
    std::vector<int> counts;
    std::vector<int> starts;
    std::int64_t count = 0;  // of all
  };
  [[nodiscard]] Slices slices_of(std::int64_t count, const char* what) const {
    std::vector<std::int64_t> sizes;
    for (int rank = 0; rank < size_; ++rank) sizes.push_back(cut(count, {rank, size_}).size());
    return slices_of(sizes, what);
  }
  [[nodiscard]] Slices slices_of(const std::vector<std::int64_t>& sizes, const char* what) const {
    Slices slices{.count = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})};
    static_cast<void>(counted(slices.count, what));
    int start = 0;
    for (const std::int64_t size : sizes) {
      slices.counts.push_back(static_cast<int>(size));
      slices.starts.push_back(start);
      start += static_cast<int>(size);
    }
    return slices;
  }

  int counted(std::int64_t count, const char* what) const {
    if (count > std::numeric_limits<int>::max())
      throw TransportError(TransportError::Cause::broken,
                           fmt::format("{} of {} values over {}: MPI counts at most {}; use smaller micro-batches",
                                       what, count, handle_->name(), std::numeric_limits<int>::max()));
    return static_cast<int>(count);
  }

  std::unique_ptr<HostOperation> all_reduce(const char* what, Values data, std::int64_t count, MPI_Op operation) {
    const int values = counted(count, what);
    return make(what, count, [data, values, operation, comm = handle_->get()](MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, data.data, values, mpi_type(data.type), operation, comm, request);
    });
  }

  template <class Begin, class Then = Nothing>
  std::unique_ptr<HostOperation> make(const char* what, std::int64_t count, Begin begin, Then then = {}) {
    const auto text = [what, count, handle = handle_.get()] {
      return fmt::format("{} ({} values) over {}", what, count, handle->name());
    };
    return std::make_unique<MpiOperation<decltype(text), Begin, Then>>(context_, handle_, OperationKind{}, text,
                                                                       std::move(begin), std::move(then));
  }

  std::shared_ptr<const Context> context_;
  std::shared_ptr<Handle> handle_;
  int rank_;
  int size_;
};

class MpiChannel final : public HostChannel {
 public:
  MpiChannel(std::shared_ptr<const Context> context, std::shared_ptr<Handle> world, int from, int to, ChannelName name)
      : context_(std::move(context)), world_(std::move(world)), from_(from), to_(to), name_(std::move(name)) {}

  std::unique_ptr<HostOperation> make_send(const void* data, std::size_t bytes) override {
    const Message message = message_of(bytes);
    return make([=, kind = name_.kind,
                 to = to_] { return fmt::format("send of {} ({} bytes) to rank {}", describe(kind), bytes, to); },
                [=, comm = world_->get(), to = to_, tag = tag()](MPI_Request* request) {
                  return MPI_Isend(data, message.count, message.type, to, tag, comm, request);
                });
  }
  std::unique_ptr<HostOperation> make_receive(void* data, std::size_t bytes) override {
    const Message message = message_of(bytes);
    return make(
        [=, kind = name_.kind, from = from_] {
          return fmt::format("receive of {} ({} bytes) from rank {}", describe(kind), bytes, from);
        },
        [=, comm = world_->get(), from = from_, tag = tag()](MPI_Request* request) {
          return MPI_Irecv(data, message.count, message.type, from, tag, comm, request);
        });
  }

 private:
  [[nodiscard]] int tag() const { return first_channel_tag + name_.id; }
  template <class What, class Begin>
  std::unique_ptr<HostOperation> make(What what, Begin begin) {
    return std::make_unique<MpiOperation<What, Begin>>(context_, world_, OperationKind{.is_collective = false},
                                                       std::move(what), std::move(begin));
  }

  std::shared_ptr<const Context> context_;
  std::shared_ptr<Handle> world_;
  int from_;
  int to_;
  ChannelName name_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<Context> context, std::shared_ptr<Handle> world)
      : context_(std::move(context)), world_(std::move(world)) {}

  std::string name() const override { return MpiSession::version(); }
  std::unique_ptr<Group> make_group(const std::vector<int>& ranks) override {
    return std::make_unique<MpiGroup>(context_, world_->of_ranks(ranks));
  }
  std::unique_ptr<Channel> make_channel(int from, int to, const ChannelName& name) override {
    return std::make_unique<MpiChannel>(context_, world_, from, to, name);
  }
  void abort() noexcept override { context_->aborted = true; }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Handle> world_;
};

class MpiControl final : public Control {
 public:
  MpiControl(std::shared_ptr<Context> context, std::shared_ptr<Handle> handle)
      : context_(std::move(context)), handle_(std::move(handle)), rank_(handle_->rank()), size_(handle_->size()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host() const override { return context_->host; }

  void barrier() override { meet(false); }
  void idle_barrier() override { meet(true); }
  double sum(double value) override { return reduced(value, MPI_SUM); }
  double max(double value) override { return reduced(value, MPI_MAX); }
  double min(double value) override { return reduced(value, MPI_MIN); }

  std::vector<std::string> gather(const std::string& text) override {
    if (rank_ != 0) {
      const std::uint64_t length = text.size();
      send(&length, sizeof(length), 0);
      send(text.data(), text.size(), 0);
      return {};
    }
    std::vector<std::string> texts{text};
    for (int from = 1; from < size_; ++from) {
      std::uint64_t length = 0;
      receive(&length, sizeof(length), from);
      std::string& received = texts.emplace_back(length, '\0');
      receive(received.data(), received.size(), from);
    }
    return texts;
  }

  std::string broadcast(std::string text) override {
    std::uint64_t length = text.size();
    broadcast(&length, sizeof(length));
    text.resize(length);
    if (length > 0) broadcast(text.data(), length);
    return text;
  }

  std::unique_ptr<Control> subgroup(const std::vector<int>& ranks) override {
    return std::make_unique<MpiControl>(context_, handle_->of_ranks(ranks));
  }

  std::vector<int> roll_call(Seconds patience) override {
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience.value());
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
    const auto is_done = [](MPI_Request& request) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    };
    int sign = rank_;
    if (rank_ != 0) {
      MPI_Request request = MPI_REQUEST_NULL;
      check(MPI_Isend(&sign, 1, MPI_INT, 0, roll_call_tag, handle_->get(), &request), "MPI_Isend");
      const auto end = deadline + std::chrono::duration<double>(patience.value());
      while (Clock::now() < end) {
        (void)is_done(request);
        pause();
      }
      return {};
    }
    std::vector<int> signs(static_cast<std::size_t>(size_));
    std::vector<MPI_Request> requests(signs.size(), MPI_REQUEST_NULL);
    for (int rank = 1; rank < size_; ++rank)
      check(MPI_Irecv(&signs[static_cast<std::size_t>(rank)], 1, MPI_INT, rank, roll_call_tag, handle_->get(),
                      &requests[static_cast<std::size_t>(rank)]),
            "MPI_Irecv");
    std::vector<int> missing;
    do {
      missing.clear();
      for (int rank = 1; rank < size_; ++rank)
        if (!is_done(requests[static_cast<std::size_t>(rank)])) missing.push_back(rank);
      pause();
    } while (!missing.empty() && Clock::now() < deadline);
    return missing;
  }

  [[noreturn]] void abort(const std::string& message) override {
    // One write, so that lines of several ranks do not mix.
    const std::string line = fmt::format("{}: error: rank {} on {}: {}\n", context_->settings.program,
                                         context_->world_rank, context_->host, message);
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
    // Aborting kills the job step at once: on a busy node what a rank wrote last then does not reach srun.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);  // MPI_Abort may return after a failed launch
  }

 private:
  template <class What, class Begin>
  void run(OperationKind kind, const What& what, const Begin& begin) {
    MpiOperation<What, Begin> operation(context_, handle_, kind, what, begin);
    finish(operation);
  }
  void meet(bool idle) {
    run(
        {.idle = idle}, [this] { return fmt::format("barrier of {}", handle_->name()); },
        [comm = handle_->get()](MPI_Request* request) { return MPI_Ibarrier(comm, request); });
  }
  double reduced(double value, MPI_Op operation) {
    run(
        {}, [this] { return fmt::format("agreement of {}", handle_->name()); },
        [&](MPI_Request* request) {
          return MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, operation, handle_->get(), request);
        });
    return value;
  }
  void broadcast(void* data, std::size_t bytes) {
    const Message message = message_of(bytes);
    run(
        {}, [&] { return fmt::format("broadcast ({} bytes) of {}", bytes, handle_->name()); },
        [&](MPI_Request* request) {
          return MPI_Ibcast(data, message.count, message.type, 0, handle_->get(), request);
        });
  }
  void send(const void* data, std::size_t bytes, int to) {
    const Message message = message_of(bytes);
    run(
        {.is_collective = false}, [&] { return fmt::format("send of {} bytes to rank {}", bytes, to); },
        [&](MPI_Request* request) {
          return MPI_Isend(data, message.count, message.type, to, control_tag, handle_->get(), request);
        });
  }
  void receive(void* data, std::size_t bytes, int from) {
    const Message message = message_of(bytes);
    run(
        {.is_collective = false}, [&] { return fmt::format("receive of {} bytes from rank {}", bytes, from); },
        [&](MPI_Request* request) {
          return MPI_Irecv(data, message.count, message.type, from, control_tag, handle_->get(), request);
        });
  }

  std::shared_ptr<Context> context_;
  std::shared_ptr<Handle> handle_;
  int rank_;
  int size_;
};

MpiWorld world_of(const std::shared_ptr<Context>& context, MPI_Comm communicator) {
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  const auto handle = std::make_shared<Handle>(communicator, "all ranks");
  return {.control = std::make_unique<MpiControl>(context, handle),
          .transport = std::make_unique<MpiTransport>(context, handle)};
}

}  // namespace

Result<MpiWorld> make_mpi_world(const MpiSettings& settings, int rank) {
  auto context = std::make_shared<Context>();
  context->settings = settings;
  context->host = host_name();
  MPI_Comm_rank(MPI_COMM_WORLD, &context->world_rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  std::array<int, 2> extremes{-rank, rank};
  MPI_Allreduce(MPI_IN_PLACE, extremes.data(), 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  const int lowest = -extremes[0];
  const int highest = extremes[1];
  if (highest < 0) return world_of(context, MPI_COMM_WORLD);
  if (lowest < 0)
    return fail(ErrorCode::unavailable, "only some ranks have been placed (SAILOR_RANK)",
                "start all of them by one srun with sailor-launch or --sailor-plan");
  MPI_Comm ordered = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &ordered);
  int place = 0;
  MPI_Comm_rank(ordered, &place);
  int good = place == rank ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, ordered);
  if (good == 0) {
    MPI_Comm_free(&ordered);
    return fail(ErrorCode::unavailable, "SAILOR_RANK does not number the ranks 0, 1, 2, ...",
                "leave it to sailor-launch or --sailor-plan to set it, or unset it");
  }
  context->world_rank = rank;
  return world_of(context, ordered);
}

}  // namespace sailor::runtime
