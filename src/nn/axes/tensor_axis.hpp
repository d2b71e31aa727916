#pragma once
// Gathering and summing of activation rows over the ranks that share each layer.
#include "choir/nn/pass.hpp"

namespace choir {

// Column layers turn whole rows [N, C] into a part of the outputs, row layers turn a part of the
// inputs into terms of whole rows, to be summed over the ranks (Shoeybi et al. 2019). With sequence
// parallelism (Korthikanti et al. 2022) the layers in between (norms, dropout and the residual
// stream) hold a share of the rows: rank r has rows [r n, (r+1) n) of the [B*T] rows, n = ceil(B*T
// / ranks); rows past the end are zeros and do not contribute. Sums are then reduce-scattered and
// shares gathered, which sends as many bytes as the all-reduce.

/// A gather of rows in flight. If rows are not shared, the result is the argument.
class RowGather {
 public:
  /// Collective: starts the gather. `share` [n, C] may be overwritten.
  RowGather(Pass& pass, const Tensor& share);
  /// [N, C]
  Tensor wait();

 private:
  Tensor rows_;
  std::int64_t count_;
  CommRequest* request_ = nullptr;
};

inline Tensor gather_rows(Pass& pass, const Tensor& share) {
  return RowGather(pass, share).wait();
}

/// This rank's share of rows that every rank has whole; zeros past the end. The gradient of the
/// whole is gather_rows() of the gradient of the share. Local.
Tensor own_rows(Pass& pass, const Tensor& rows);

/// Uninitialised [N, width], to be filled and passed to RowSum.
Tensor allocate_terms(Pass& pass, std::int64_t width, const char* tag);

/// A sum of rows over ranks in flight.
class RowSum {
 public:
  /// Collective: starts the sum. `terms` are from allocate_terms().
  RowSum(Pass& pass, Tensor terms);
  /// [N, width], or this rank's share [n, width] of it.
  Tensor wait();

 private:
  Pass* pass_;
  Tensor terms_;
  CommRequest* request_ = nullptr;
};

}  // namespace choir
