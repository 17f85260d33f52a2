#include "cluster/host_list.hpp"

#include <gtest/gtest.h>

namespace sailor::host_list_test {
namespace {

using Names = std::vector<std::string>;

std::string error_of(std::string_view text) {
  const auto names = expand_host_list(text);
  return names ? "" : names.error().what;
}

TEST(HostList, ExpandsWhatSlurmWrites) {
  EXPECT_EQ(*expand_host_list("a1"), (Names{"a1"}));
  EXPECT_EQ(*expand_host_list("node[08-10,2],gpu-9"), (Names{"node08", "node09", "node10", "node2", "gpu-9"}));
  EXPECT_EQ(*expand_host_list("r[1-2]n[1-2]x"), (Names{"r1n1x", "r1n2x", "r2n1x", "r2n2x"}));
}

TEST(HostList, RefusesWhatIsNoList) {
  EXPECT_EQ(error_of(""), "node list '': a name is empty");
  EXPECT_EQ(error_of("a,,b"), "node list 'a,,b': a name is empty");
  EXPECT_EQ(error_of("a[1-2"), "node list 'a[1-2': '[' without ']'");
  EXPECT_EQ(error_of("a]1"), "node list 'a]1': ']' without '['");
  EXPECT_EQ(error_of("a[[1]]"), "node list 'a[[1]]': '[' inside of brackets");
  EXPECT_EQ(error_of("a[3-1]"), "node list 'a[3-1]': the range 3-1 runs backwards");
  EXPECT_EQ(error_of("a[x]"), "node list 'a[x]': 'x' in brackets is no number or range of numbers");
  EXPECT_EQ(error_of("a[]"), "node list 'a[]': '' in brackets is no number or range of numbers");
  EXPECT_EQ(error_of("a[1-2000000]"), "node list 'a[1-2000000]': it has more than 1000000 names");
  EXPECT_EQ(error_of("a[0-999]b[0-999]c[0-9]"), "node list 'a[0-999]b[0-999]c[0-9]': it has more than 1000000 names");
}

}  // namespace
}  // namespace sailor::host_list_test
