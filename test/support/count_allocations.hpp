#pragma once
// Counts the calls of operator new in the test programs, for "nothing is allocated in here", and
// the bytes that it gave away, for "nobody needs more than its share".
#include <cstdint>

namespace choir::test {

/// Calls of operator new (any form, any thread) since the start.
std::int64_t allocations();

/// The most bytes that were in use at a time since this was made, beyond those that were in use
/// then. One at a time.
class PeakBytes {
 public:
  PeakBytes();
  std::int64_t value() const;

 private:
  std::int64_t before_;
};

}  // namespace choir::test
