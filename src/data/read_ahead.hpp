#pragma once
// Slots that a thread fills ahead while earlier ones are in use.
#include <cstdint>
#include <memory>

namespace choir {

/// Fills slots; called by one thread at a time.
class SlotSource {
 public:
  virtual ~SlotSource() = default;
  /// Fills `slot` for the call-th request. May be collective over the ranks.
  virtual void fill(std::int64_t call, int slot) = 0;
  /// See TokenReader::abandon.
  virtual void abandon() = 0;
};

/// Runs SlotSource::fill for calls 0, 1, 2 ... up to `slots` - 1 ahead of next(). The distance
/// depends only on the number of next() calls, so ranks that called it equally often have read
/// equally often, and stopping leaves no rank waiting inside a collective read. If not `threaded`
/// (required without MPI_THREAD_MULTIPLE; one slot is enough), next() fills the slot itself.
class ReadAhead {
 public:
  ReadAhead(std::unique_ptr<SlotSource> source, bool threaded, int slots);
  /// Waits for the current reads, which may involve other ranks, for at most kPatience seconds, and
  /// not at all while an exception unwinds; then it abandons them.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Returns the next filled slot, valid until `slots` - 1 further calls. An error of filling is
  /// thrown here, and again on every later call.
  int next();

  std::int64_t calls() const;   ///< calls of next() so far
  double wait_seconds() const;  ///< spent in next() so far

  static constexpr double kPatience = 10;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
