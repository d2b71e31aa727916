#pragma once
// Slots filled by a thread of its own while what was filled before is in use.
#include <cstdint>
#include <memory>

namespace choir {

/// Fills slots; called by one thread at a time.
class SlotSource {
 public:
  virtual ~SlotSource() = default;
  /// Fills `slot` with what is asked for in the call-th place. May be collective over the ranks.
  virtual void fill(std::int64_t call, int slot) = 0;
  /// See TokenReader::abandon.
  virtual void abandon() = 0;
};

/// Runs SlotSource::fill for calls 0, 1, 2 ... up to `slots` - 1 ahead of next(). How far ahead
/// depends on the number of next() calls alone, so ranks that asked equally often have read equally
/// often, and stopping leaves no rank waiting inside a collective read. Not `threaded` (one slot is
/// enough then; without MPI_THREAD_MULTIPLE there is no choice) next() reads by itself.
class ReadAhead {
 public:
  ReadAhead(std::unique_ptr<SlotSource> source, bool threaded, int slots);
  /// Waits for the reads under way, as they may involve other ranks, at most kPatience seconds and
  /// not at all while an exception unwinds: then they are abandoned.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The slot that was filled next; holds until `slots` - 1 further calls. Throws what the filling
  /// threw, again on every later call.
  int next();

  std::int64_t calls() const;   ///< of next() so far
  double wait_seconds() const;  ///< spent in next() so far

  static constexpr double kPatience = 10;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
