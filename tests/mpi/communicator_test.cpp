// Collectives of the MPI communicator: what they leave in memory. This program starts itself under mpirun, and there
// is each rank's check.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <numeric>
#include <type_traits>
#include <vector>

#include "runtime/bfloat16.hpp"
#include "runtime/mpi/mpi_session.hpp"

namespace sailor {
namespace {

using runtime::Communicator;

std::string own_path;  // NOLINT

int start_ranks(int ranks) {
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);  // containers run tests as root
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  const bool is_open_mpi = runtime::MpiSession::version().starts_with("Open MPI");
  const int status = std::system(
      fmt::format("{}{} -n {} {} ranks", SAILOR_MPIEXEC, is_open_mpi ? " --oversubscribe" : "", ranks, own_path)
          .c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(MpiCollectives, LeaveTheRightValuesOnTwoThreeAndFourRanks) {
  for (const int ranks : {1, 2, 3, 4}) EXPECT_EQ(start_ranks(ranks), 0) << ranks << " ranks";
}

/// Value i of rank r before an operation. Sums of four are below 256: exact in bfloat16 too.
float before(int rank, std::int64_t i) { return static_cast<float>(8 * (rank + 1)) + static_cast<float>(i % 8); }

float number(float value) { return value; }
float number(std::uint16_t value) { return runtime::from_bfloat16(value); }
void store(float value, float& to) { to = value; }
void store(float value, std::uint16_t& to) { to = runtime::to_bfloat16(value); }

/// What is wrong on this rank; empty when all is right. `Value` is float, or the bits of a bfloat16.
template <class Value>
std::string check_collectives(Communicator& group, std::int64_t slice) {
  constexpr runtime::DataType type =
      std::is_same_v<Value, float> ? runtime::DataType::float32 : runtime::DataType::bfloat16;
  const int n = group.size();
  const int me = group.rank();
  const std::int64_t count = slice * n;
  std::vector<Value> data(static_cast<std::size_t>(count));
  const runtime::Values values(data.data(), type);
  auto fill = [&] {
    for (std::int64_t i = 0; i < count; ++i) store(before(me, i), data[static_cast<std::size_t>(i)]);
  };
  // 8 (1 + ... + n) + n (i mod 8)
  auto sum = [&](std::int64_t i) { return static_cast<float>(4 * n * (n + 1)) + static_cast<float>(n * (i % 8)); };
  std::string wrong;
  auto expect = [&](const char* what, std::int64_t i, float value) {
    const float found = number(data[static_cast<std::size_t>(i)]);
    if (found != value && wrong.empty())
      wrong = fmt::format("{} of {} values of {} bytes over {} ranks: value {} is {}, not {}", what, count,
                          sizeof(Value), n, i, found, value);
  };
  fill();
  group.all_reduce_sum(values, count);
  for (std::int64_t i = 0; i < count; ++i) expect("all_reduce_sum", i, sum(i));
  fill();
  group.all_reduce_sum_later(values, count)->wait();
  for (std::int64_t i = 0; i < count; ++i) expect("all_reduce_sum_later", i, sum(i));
  fill();
  group.all_gather(values, count);
  for (std::int64_t i = 0; i < count; ++i) expect("all_gather", i, before(static_cast<int>(i / slice), i));
  fill();
  group.reduce_scatter_sum(values, count);
  for (std::int64_t i = me * slice; i < (me + 1) * slice; ++i) expect("reduce_scatter_sum", i, sum(i));
  if (n >= 2 && me < 2) {
    fill();
    if (me == 0) group.send(data.data(), data.size() * sizeof(Value), 1, runtime::MessageKind::link_test);
    if (me == 1) {
      group.receive(data.data(), data.size() * sizeof(Value), 0, runtime::MessageKind::link_test);
      for (std::int64_t i = 0; i < count; ++i) expect("send", i, before(0, i));
    }
  }
  group.idle_barrier();
  return wrong;
}

int check_rank() {
  auto session = runtime::MpiSession::start({.program = "communicator_test", .timeout = Seconds(60.0)}, {});
  if (!session) return 1;
  Communicator& world = (*session)->world();
  std::string wrong;
  for (const std::int64_t slice : {1, 7, 100'000})
    for (const auto check : {check_collectives<float>, check_collectives<std::uint16_t>})
      if (wrong.empty()) wrong = check(world, slice);
  if (world.size() >= 3 && world.rank() > 0) {  // rank i of a subgroup is not rank i of the world
    std::vector<int> ranks(static_cast<std::size_t>(world.size() - 1));
    std::iota(ranks.begin(), ranks.end(), 1);
    const auto group = world.subgroup(ranks);
    for (const auto check : {check_collectives<float>, check_collectives<std::uint16_t>})
      if (wrong.empty()) wrong = check(*group, 5);
  }
  if (!wrong.empty()) fmt::print(stderr, "rank {}: {}\n", world.rank(), wrong);
  return world.max(wrong.empty() ? 0.0 : 1.0) > 0.0 ? 1 : 0;
}

}  // namespace
}  // namespace sailor

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "ranks") return sailor::check_rank();
  sailor::own_path = argv[0];
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
