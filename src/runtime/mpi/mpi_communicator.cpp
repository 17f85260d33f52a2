// Every wait polls MPI_Test: a blocking MPI call cannot be given a deadline, and Open MPI's survivors of a dead rank
// hang in it for ever. Polling yields the core after a short spin, as ranks may share cores.
#include "runtime/mpi/mpi_communicator.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "runtime/bfloat16.hpp"

namespace sailor::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int yields = 10;  // before a wait that is to be idle sleeps
constexpr int spins = 200;  // MPI_Test calls before the core is offered to others; about 20 us

/// What all communicators of a process share.
struct Context {
  MpiSettings settings;
  std::string host;
  int world_rank = 0;
  std::atomic<bool> interrupted = false;
};
static_assert(std::atomic<bool>::is_always_lock_free);  // set by signal handlers

[[noreturn]] void abort_job(const Context& context, const std::string& message) {
  // One write, so that lines of several ranks do not mix.
  const std::string line = fmt::format("{}: error: rank {} on {}: {}\n", context.settings.program, context.world_rank,
                                       context.host, message);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);  // MPI_Abort may return after a failed launch
}

void check(int code, const Context& context, const std::string& call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  abort_job(context, fmt::format("{} failed: {}", call, std::string(text.data(), static_cast<std::size_t>(length))));
}

/// One MPI request. `what` says what is waited for: "receive of the activation (2.0 MiB) from rank 3".
class MpiRequest final : public Request {
 public:
  MpiRequest(const Context& context, std::string what, bool is_collective = true)
      : context_(context), what_(std::move(what)), is_collective_(is_collective) {}
  ~MpiRequest() override {
    if (request_ == MPI_REQUEST_NULL) return;
    // After an interruption, or when an exception ends the rank. MPI knows no way to give up a collective: its request
    // is left behind.
    if (is_collective_) return;
    MPI_Cancel(&request_);
    MPI_Request_free(&request_);
  }
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  MPI_Request* handle() { return &request_; }

  bool test() override {
    if (context_.interrupted.load(std::memory_order_relaxed)) throw Interrupted();
    int done = 0;
    check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), context_, what_);
    return done != 0;
  }

  void wait() override {
    if (context_.settings.idle_waits) {
      for (int i = 0; i < yields; ++i) {  // most answers are a moment away
        if (test()) return;
        sched_yield();
      }
      wait_asleep();
      return;
    }
    for (int i = 0; i < spins; ++i)
      if (test()) return;
    wait_with([] { sched_yield(); });
  }

  /// Leaves the core to others: sleeps ever longer, up to 1 ms.
  void wait_asleep() {
    constexpr std::chrono::microseconds longest{1000};
    std::chrono::microseconds pause{20};
    wait_with([&] {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, longest);
    });
  }

 private:
  template <class Pause>
  void wait_with(const Pause& pause) {
    const auto start = Clock::now();
    while (!test()) {
      pause();
      const std::chrono::duration<double> waited = Clock::now() - start;
      if (waited.count() > context_.settings.timeout.value())
        abort_job(context_, fmt::format("no answer for {:g} s: {}; that rank has died, hangs, or is that slow "
                                        "(then raise --timeout)",
                                        context_.settings.timeout.value(), what_));
    }
  }

  const Context& context_;
  std::string what_;
  bool is_collective_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

std::string_view to_string(MessageKind kind) {
  switch (kind) {
    case MessageKind::activation:
      return "an activation";
    case MessageKind::gradient:
      return "a gradient";
    case MessageKind::control:
      return "a control message";
    case MessageKind::link_test:
      return "a test message";
    case MessageKind::rehearsal:
      return "an answer to a rehearsed message";
  }
  return "a message";
}

/// MPI counts elements in an int: large messages are counted in floats, then in 4 KiB pieces.
struct Message {
  MPI_Datatype type;
  int count;
};

extern "C" void add_bfloat16(void* from, void* to, int* count, MPI_Datatype*) {
  const auto* const more = static_cast<const std::uint16_t*>(from);
  auto* const sums = static_cast<std::uint16_t*>(to);
  for (int i = 0; i < *count; ++i) sums[i] = to_bfloat16(from_bfloat16(sums[i]) + from_bfloat16(more[i]));
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Context> context, MPI_Comm communicator, std::string name)
      : context_(std::move(context)), communicator_(communicator), name_(std::move(name)) {
    call(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    call(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  }
  ~MpiCommunicator() override {
    if (page_ != MPI_DATATYPE_NULL) MPI_Type_free(&page_);
    if (bfloat16_sum_ != MPI_OP_NULL) MPI_Op_free(&bfloat16_sum_);
    if (communicator_ != MPI_COMM_WORLD) MPI_Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string host() const override { return context_->host; }
  void interrupt() noexcept override { context_->interrupted = true; }
  void resume() noexcept override { context_->interrupted = false; }
  [[noreturn]] void abort(const std::string& message) override { abort_job(*context_, message); }

  std::unique_ptr<Request> send_later(const void* data, std::size_t bytes, int to, MessageKind kind) override {
    auto request = std::make_unique<MpiRequest>(
        *context_, fmt::format("send of {} ({} bytes) to rank {}", to_string(kind), bytes, to), false);
    const Message message = message_of(bytes);
    call(MPI_Isend(data, message.count, message.type, to, static_cast<int>(kind), communicator_, request->handle()),
         "MPI_Isend");
    return request;
  }

  std::unique_ptr<Request> receive_later(void* data, std::size_t bytes, int from, MessageKind kind) override {
    auto request = std::make_unique<MpiRequest>(
        *context_, fmt::format("receive of {} ({} bytes) from rank {}", to_string(kind), bytes, from), false);
    const Message message = message_of(bytes);
    call(MPI_Irecv(data, message.count, message.type, from, static_cast<int>(kind), communicator_, request->handle()),
         "MPI_Irecv");
    return request;
  }

  void all_reduce_sum(Values data, std::int64_t count) override {
    constexpr std::int64_t piece = std::numeric_limits<int>::max();
    for (std::int64_t done = 0; done < count; done += piece)
      reduce((data + done).data, static_cast<int>(std::min(piece, count - done)), mpi_type(data), sum_of(data), "sum");
  }

  std::unique_ptr<Request> all_reduce_sum_later(Values data, std::int64_t count) override {
    auto request = std::make_unique<MpiRequest>(*context_, fmt::format("sum ({} values) over {}", count, name_));
    call(MPI_Iallreduce(MPI_IN_PLACE, data.data, counted(count, "sum"), mpi_type(data), sum_of(data), communicator_,
                        request->handle()),
         "MPI_Iallreduce");
    return request;
  }

  void all_reduce_max(float* data, std::int64_t count) override {
    reduce(data, counted(count, "maximum"), MPI_FLOAT, MPI_MAX, "maximum");
  }

  void all_gather(Values data, std::int64_t count) override {
    const Slices slices = slices_of(count, "all-gather");
    MpiRequest request(*context_, fmt::format("all-gather ({} values) over {}", count, name_));
    const MPI_Datatype type = mpi_type(data);
    call(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, data.data, slices.counts.data(), slices.starts.data(), type,
                         communicator_, request.handle()),
         "MPI_Iallgatherv");
    request.wait();
  }

  void reduce_scatter_sum(Values data, std::int64_t count) override {
    const Slices slices = slices_of(count, "reduce-scatter");
    MpiRequest request(*context_, fmt::format("reduce-scatter ({} values) over {}", count, name_));
    call(MPI_Ireduce_scatter(MPI_IN_PLACE, data.data, slices.counts.data(), mpi_type(data), sum_of(data), communicator_,
                             request.handle()),
         "MPI_Ireduce_scatter");
    request.wait();
    // MPI leaves this rank's slice at the beginning.
    const auto mine = static_cast<std::size_t>(rank_);
    if (rank_ > 0) std::memmove((data + slices.starts[mine]).data, data.data, bytes_of(data.type, slices.counts[mine]));
  }

  void broadcast(void* data, std::size_t bytes, int root) override {
    MpiRequest request(*context_, fmt::format("broadcast ({} bytes) from rank {} of {}", bytes, root, name_));
    const Message message = message_of(bytes);
    call(MPI_Ibcast(data, message.count, message.type, root, communicator_, request.handle()), "MPI_Ibcast");
    request.wait();
  }

  void barrier() override {
    MpiRequest request(*context_, fmt::format("barrier of {}", name_));
    call(MPI_Ibarrier(communicator_, request.handle()), "MPI_Ibarrier");
    request.wait();
  }

  void idle_barrier() override {
    MpiRequest request(*context_, fmt::format("barrier of {}", name_));
    call(MPI_Ibarrier(communicator_, request.handle()), "MPI_Ibarrier");
    request.wait_asleep();
  }

  double sum(double value) override { return reduced(value, MPI_SUM); }
  double max(double value) override { return reduced(value, MPI_MAX); }
  double min(double value) override { return reduced(value, MPI_MIN); }

  std::vector<std::string> gather(const std::string& text) override {
    if (rank_ != 0) {
      const std::uint64_t length = text.size();
      send(&length, sizeof(length), 0, MessageKind::control);
      send(text.data(), text.size(), 0, MessageKind::control);
      return {};
    }
    std::vector<std::string> texts{text};
    for (int from = 1; from < size_; ++from) {
      std::uint64_t length = 0;
      receive(&length, sizeof(length), from, MessageKind::control);
      std::string& received = texts.emplace_back(length, '\0');
      receive(received.data(), received.size(), from, MessageKind::control);
    }
    return texts;
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks) override {
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group some = MPI_GROUP_NULL;
    MPI_Comm made = MPI_COMM_NULL;
    call(MPI_Comm_group(communicator_, &all), "MPI_Comm_group");
    call(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
    // Blocking, but between ranks that are all alive: they met in the program's last collective just before.
    call(MPI_Comm_create_group(communicator_, some, 0, &made), "MPI_Comm_create_group");
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    return std::make_unique<MpiCommunicator>(context_, made, fmt::format("ranks {}", fmt::join(ranks, ",")));
  }

 private:
  void call(int code, const char* name) const { check(code, *context_, fmt::format("{} on {}", name, name_)); }

  Message message_of(std::size_t bytes) {
    constexpr std::size_t most = std::numeric_limits<int>::max();
    constexpr std::size_t page = 4096;
    if (bytes <= most) return {MPI_BYTE, static_cast<int>(bytes)};
    if (bytes % page != 0 || bytes / page > most)
      abort(
          fmt::format("message of {} bytes: above 2 GiB only multiples of {} bytes can be sent; use a smaller "
                      "micro-batch",
                      bytes, page));
    if (page_ == MPI_DATATYPE_NULL) {
      call(MPI_Type_contiguous(page, MPI_BYTE, &page_), "MPI_Type_contiguous");
      call(MPI_Type_commit(&page_), "MPI_Type_commit");
    }
    return {page_, static_cast<int>(bytes / page)};
  }

  /// MPI does not know bfloat16: its bits travel as integers.
  static MPI_Datatype mpi_type(ConstValues values) { return values.is_float32() ? MPI_FLOAT : MPI_UINT16_T; }
  MPI_Op sum_of(ConstValues values) {
    if (values.is_float32()) return MPI_SUM;
    if (bfloat16_sum_ == MPI_OP_NULL) call(MPI_Op_create(add_bfloat16, 1, &bfloat16_sum_), "MPI_Op_create");
    return bfloat16_sum_;
  }

  int counted(std::int64_t count, const char* what) {
    if (count > std::numeric_limits<int>::max())
      abort(fmt::format("{} of {} values over {}: MPI counts at most {}; use smaller arrays", what, count, name_,
                        std::numeric_limits<int>::max()));
    return static_cast<int>(count);
  }

  /// Every rank's slice of an array.
  struct Slices {
    std::vector<int> counts;
    std::vector<int> starts;
  };
  Slices slices_of(std::int64_t count, const char* what) {
    static_cast<void>(counted(count, what));
    Slices slices;
    for (int rank = 0; rank < size_; ++rank) {
      const Range slice = cut(count, {rank, size_});
      slices.counts.push_back(static_cast<int>(slice.size()));
      slices.starts.push_back(static_cast<int>(slice.first));
    }
    return slices;
  }

  void reduce(void* data, int count, MPI_Datatype type, MPI_Op operation, const char* what) {
    MpiRequest request(*context_, fmt::format("{} ({} values) over {}", what, count, name_));
    call(MPI_Iallreduce(MPI_IN_PLACE, data, count, type, operation, communicator_, request.handle()), "MPI_Iallreduce");
    request.wait();
  }

  double reduced(double value, MPI_Op operation) {
    reduce(&value, 1, MPI_DOUBLE, operation, "agreement");
    return value;
  }

  std::shared_ptr<Context> context_;
  MPI_Comm communicator_;
  std::string name_;
  int rank_ = 0;
  int size_ = 1;
  MPI_Datatype page_ = MPI_DATATYPE_NULL;
  MPI_Op bfloat16_sum_ = MPI_OP_NULL;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_mpi_world(const MpiSettings& settings, int rank) {
  auto context = std::make_shared<Context>();
  context->settings = settings;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  context->host = host.data();
  MPI_Comm_rank(MPI_COMM_WORLD, &context->world_rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  std::array<int, 2> extremes{-rank, rank};
  MPI_Allreduce(MPI_IN_PLACE, extremes.data(), 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  const int lowest = -extremes[0];
  const int highest = extremes[1];
  if (highest < 0) return std::make_unique<MpiCommunicator>(std::move(context), MPI_COMM_WORLD, "all ranks");
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
  MPI_Comm_set_errhandler(ordered, MPI_ERRORS_RETURN);
  return std::make_unique<MpiCommunicator>(std::move(context), ordered, "all ranks");
}

}  // namespace sailor::runtime
