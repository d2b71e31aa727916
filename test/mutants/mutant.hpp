#pragma once
// Included by every source that test/mutants/mutate.sh writes: the rule that is broken
// (CHOIR_MUTANT), and the code in which none is.
#include <cstdlib>
#include <cstring>

namespace choir::mutants {

inline bool obeying = false;

inline bool breaks(const char* rule) {
  static const char* const chosen = std::getenv("CHOIR_MUTANT");
  return !obeying && chosen != nullptr && std::strcmp(chosen, rule) == 0;
}

/// While this object exists all rules are kept.
class Obedient {
 public:
  Obedient() { obeying = true; }
  ~Obedient() { obeying = false; }
};

}  // namespace choir::mutants
