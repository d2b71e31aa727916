#pragma once
// Grids of trainings: `make test` trains every entry of a grid with some of the precisions and
// models, and `make test-long`, which sets TEST_EXHAUSTIVE, every entry with each of them.
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace choir::test {

inline bool exhaustive() {
  static const bool asked = std::getenv("TEST_EXHAUSTIVE") != nullptr;
  return asked;
}

/// The part of `list` that pass number `pass` takes. Any `passes` passes in a row take every entry
/// once; as there are more passes than that, each entry is tested in several of them. Short lists
/// are taken whole.
template <class T>
std::vector<T> dealt(const std::vector<T>& list, std::size_t pass, std::size_t passes = 3) {
  if (exhaustive() || list.size() < 2 * passes) return list;
  std::vector<T> taken;
  for (std::size_t i = 0; i < list.size(); ++i)
    if ((i + pass) % passes == 0) taken.push_back(list[i]);
  return taken;
}

/// The same for nested loops instead of a list.
class Deal {
 public:
  explicit Deal(std::size_t pass = 0, std::size_t passes = 3) : turn_(pass), passes_(passes) {}
  bool takes() { return turn_++ % passes_ == 0 || exhaustive(); }

 private:
  std::size_t turn_, passes_;
};

}  // namespace choir::test
