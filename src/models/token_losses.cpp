#include "src/models/token_losses.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "src/nn/axes/tensor_axis.hpp"

namespace choir {

std::int64_t usual_head_chunk(std::int64_t vocabulary, DType logits) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20, kMultiple = 128;
  constexpr std::int64_t kLeastRows = 1024, kMostRows = 65536;
  const std::int64_t rows =
      kBytes / (vocabulary * static_cast<std::int64_t>(size_of(logits))) / kMultiple * kMultiple;
  return rows >= kMostRows ? 0 : std::max(rows, kLeastRows);
}

Tensor chunked_token_losses(Pass& pass, Linear& head, const Tensor& rows, const ModelBatch& batch,
                            const TokenTargets& of, std::int64_t chunk) {
  const Tensor all = gather_rows(pass, rows);
  const std::int64_t count = all.shape.rows(), most = std::min(chunk, count);
  const bool saves = pass.saves();
  TokenLosses losses(pass, batch, of, most);
  Tensor d_all;
  if (saves) d_all = allocate_terms(pass, all.shape.back(), "head input gradient");
  const Tensor logits = pass.allocate({most, head.outputs()}, "logits of a chunk");
  std::optional<RowSum> d_rows;
  for (std::int64_t first = 0; first < count; first += most) {
    const std::int64_t n = std::min(most, count - first);
    const TensorView x = all.slice(first, n), z = logits.slice(0, n);
    head.multiply(pass, x, z);
    losses.compute(z, first, saves);
    if (!saves) continue;
    head.multiply_back(pass, z, d_all.slice(first, n));
    // The sum over ranks travels during the last product.
    if (first + n == count) d_rows.emplace(pass, std::exchange(d_all, Tensor()));
    head.add_gradients(pass, all.view(x), logits.view(z));
  }
  losses.add_to_loss();
  if (saves) pass.save(d_rows->wait());
  return losses.losses();
}

}  // namespace choir
