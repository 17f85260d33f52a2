#include "runtime/cpu/threads.hpp"

namespace sailor::runtime::cpu {

#ifdef _OPENMP
Threads::Threads(int count) : count_(count) {}
#else
Threads::Threads(int) : count_(1) {}
#endif

void Threads::run(int pieces, std::int64_t items, const std::function<void(const Range& part, int piece)>& work) {
  if (pieces == 1) return work({0, items}, 0);
#pragma omp parallel for num_threads(pieces) schedule(static, 1)
  for (int piece = 0; piece < pieces; ++piece) work(cut(items, {piece, pieces}), piece);
}

}  // namespace sailor::runtime::cpu
