#pragma once
// `train.profile`: spans of chosen steps as a Chrome trace (chrome://tracing, ui.perfetto.dev),
// with one track per rank.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"

namespace choir {

class Trace {
 public:
  /// Keeps the spans of steps first..last, counted from 1; {0, 0} keeps none.
  Trace(std::int64_t first, std::int64_t last);

  /// These never allocate: spans beyond the reserved number are counted as lost. Local.
  void begin_step(std::int64_t step) { step_ = step; }
  void span(const char* name, double start, double end);
  std::int64_t first() const { return first_; }
  std::int64_t last() const { return last_; }
  bool recording() const { return step_ >= first_ && step_ <= last_ && last_ > 0; }
  /// True if the last step has been recorded and not yet written. A run resumed after that step
  /// never writes the trace.
  bool complete() const { return last_ > 0 && !written_ && step_ == last_; }

  /// Aligns the clocks of ranks at a barrier; the first span begins at 0. Rank 0 writes. Throws
  /// StorageError (agreed). Collective over `world`.
  void write(const std::string& path, Communicator& world);

 private:
  struct Span {
    const char* name;
    std::int64_t step;
    double start, end;
  };
  std::int64_t first_, last_, step_ = 0;
  std::vector<Span> spans_;
  std::size_t lost_ = 0;
  bool written_ = false;
};

}  // namespace choir
