// Runs a fuzz target without libFuzzer: on each seed file, on every prefix length of a coarse grid, and on mutations
// drawn with a fixed seed. What fails fails again.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
/// A target may make its own seed (a binary file that is not kept in the repository).
extern "C" std::size_t sailor_fuzz_seed(std::vector<std::uint8_t>& seed) __attribute__((weak));

namespace {

/// Large seeds have fewer mutations: there is less of their grammar in each byte.
constexpr std::size_t most_mutations = 3000;
constexpr std::size_t most_bytes = 8u << 20;

void mutate(std::vector<std::uint8_t>& bytes, std::mt19937& random) {
  static const std::string words[] = {
      "-1", "0", "9223372036854775807", "1e308", "nan", "\"", "[[", "]", "=", "\n", "\0\xff", "inf", "'''"};
  const int edits = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < edits && !bytes.empty(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(random() % bytes.size());
    switch (random() % 4) {
      case 0:
        bytes[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random());
        break;
      case 1:
        bytes.erase(bytes.begin() + at,
                    bytes.begin() + std::min<std::ptrdiff_t>(at + 1 + random() % 8, std::ssize(bytes)));
        break;
      case 2: {
        const std::string& word = words[random() % std::size(words)];
        bytes.insert(bytes.begin() + at, word.begin(), word.end());
        break;
      }
      default: {  // a piece of the file once more, elsewhere
        const auto end = std::min<std::ptrdiff_t>(at + 1 + random() % 32, std::ssize(bytes));
        const std::vector<std::uint8_t> piece(bytes.begin() + at, bytes.begin() + end);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random() % bytes.size()), piece.begin(), piece.end());
      }
    }
  }
}

void run_seed(const std::vector<std::uint8_t>& seed) {
  std::mt19937 random(20260101);
  LLVMFuzzerTestOneInput(seed.data(), seed.size());
  const std::size_t step = seed.size() / 200 + 1;
  for (std::size_t size = 0; size < seed.size(); size += step) LLVMFuzzerTestOneInput(seed.data(), size);
  const std::size_t mutations = std::min(most_mutations, most_bytes / (seed.size() + 1));
  for (std::size_t i = 0; i < mutations; ++i) {
    std::vector<std::uint8_t> bytes = seed;
    mutate(bytes, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  int seeds = 0;
  for (int i = 1; i < argc; ++i, ++seeds) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    run_seed({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
  }
  if (sailor_fuzz_seed != nullptr) {
    std::vector<std::uint8_t> seed;
    sailor_fuzz_seed(seed);
    run_seed(seed);
    ++seeds;
  }
  std::printf("%d seeds and their mutations: no crash\n", seeds);
  return seeds > 0 ? 0 : 1;
}
