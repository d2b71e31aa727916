#include "src/nn/axes/tensor_axis.hpp"

#include <algorithm>
#include <utility>

#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

}  // namespace

RowGather::RowGather(Pass& pass, const Tensor& share) : count_(pass.sequence().rows()) {
  if (!pass.shares_rows()) {
    rows_ = share;
    count_ = share.shape.rows();
    return;
  }
  const TensorAxis& axis = pass.tensor();
  const std::int64_t n = pass.share_rows(), width = share.shape.back();
  CHOIR_CHECK(share.shape.rows() == n, "a share of {} rows, not {}", share.shape.rows(), n);
  rows_ = pass.allocate({n * axis.size(), width}, "gathered rows");
  ops::copy(pass.stream(), share, rows_.slice(n * axis.rank(), n));
  request_ = &axis.communicator->start_all_gather(rows_.data, size(n * width), rows_.dtype);
}

Tensor RowGather::wait() {
  if (request_ != nullptr) request_->wait();
  request_ = nullptr;
  const Tensor all = std::exchange(rows_, Tensor());
  return all.view(all.slice(0, count_));
}

Tensor own_rows(Pass& pass, const Tensor& rows) {
  if (!pass.shares_rows()) return rows;
  const std::int64_t n = pass.share_rows(), first = pass.first_share_row();
  const std::int64_t real = std::clamp<std::int64_t>(pass.sequence().rows() - first, 0, n);
  Tensor share = pass.allocate({n, rows.shape.back()}, "share of rows");
  if (real > 0) ops::copy(pass.stream(), rows.slice(first, real), share.slice(0, real));
  if (real < n) ops::zero(pass.stream(), share.slice(real, n - real));
  return share;
}

Tensor allocate_terms(Pass& pass, std::int64_t width, const char* tag) {
  const std::int64_t rows = pass.sequence().rows();
  if (!pass.shares_rows()) return pass.allocate({rows, width}, tag);
  const std::int64_t all = pass.share_rows() * pass.tensor().size();
  const Tensor terms = pass.allocate({all, width}, tag);
  if (all > rows) ops::zero(pass.stream(), terms.slice(rows, all - rows));
  return terms.view(terms.slice(0, rows));
}

RowSum::RowSum(Pass& pass, Tensor terms) : pass_(&pass), terms_(std::move(terms)) {
  const TensorAxis& axis = pass.tensor();
  if (axis.size() == 1) return;
  Communicator& ranks = *axis.communicator;
  if (pass.shares_rows())
    request_ =
        &ranks.start_reduce_scatter(terms_.data, size(pass.share_rows() * terms_.shape.back()),
                                    terms_.dtype, ReduceOp::sum, axis.order);
  else
    request_ = &ranks.start_all_reduce(terms_.data, size(terms_.count()), terms_.dtype,
                                       ReduceOp::sum, axis.order);
}

Tensor RowSum::wait() {
  if (request_ == nullptr) return std::move(terms_);
  request_->wait();
  request_ = nullptr;
  if (!pass_->shares_rows()) return std::move(terms_);
  // A copy, so that the rows of the other ranks need not be kept.
  const std::int64_t n = pass_->share_rows(), width = terms_.shape.back();
  Tensor share = pass_->allocate({n, width}, "share of rows");
  const Tensor all = std::exchange(terms_, Tensor());
  const TensorView rows{all.data, all.dtype, {n * pass_->tensor().size(), width}};
  ops::copy(pass_->stream(), rows.slice(n * pass_->tensor().rank(), n), share);
  return share;
}

}  // namespace choir
