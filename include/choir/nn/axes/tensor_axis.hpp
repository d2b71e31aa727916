#pragma once
// The two ways rows of activations travel among the ranks that share each layer.
#include "choir/nn/pass.hpp"

namespace choir {

// Column layers turn whole rows [N, C] into a part of the outputs, row layers turn a part of the
// inputs into terms of whole rows, to be summed over the ranks (Shoeybi et al. 2019). With sequence
// parallelism (Korthikanti et al. 2022) what lies between them, norms, dropout and the residual
// stream, holds a share of the rows: rank r has rows [r n, (r+1) n) of the [B*T] rows, n =
// ceil(B*T / ranks); rows past the end are zeros and count nowhere. Sums are then reduce-scattered
// and shares gathered: as many bytes as the all-reduce.

/// All rows of what the ranks hold shares of, under way; where rows are not shared, what is passed
/// in.
class RowGather {
 public:
  /// Collective: starts. `share` [n, C] is free to go.
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

/// This rank's share of rows that every rank has whole; zeros past the end. Local. The gradient of
/// the whole is gather_rows() of that of the share.
Tensor own_rows(Pass& pass, const Tensor& rows);

/// Uninitialised [N, width], to be written and passed to RowSum.
Tensor allocate_terms(Pass& pass, std::int64_t width, const char* tag);

/// The sum over ranks of rows, under way.
class RowSum {
 public:
  /// Collective: starts. `terms` from allocate_terms().
  RowSum(Pass& pass, Tensor terms);
  /// [N, width], or this rank's share [n, width] of it.
  Tensor wait();

 private:
  Pass* pass_;
  Tensor terms_;
  CommRequest* request_ = nullptr;
};

}  // namespace choir
