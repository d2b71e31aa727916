#include "src/optim/newton_schulz.hpp"

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/sums/sums.hpp"
#include "kernels/update/muon.hpp"

namespace choir {
namespace {

constexpr double kLeastNorm = 1e-7;

using Triple = NewtonSchulzTriple;
constexpr Triple kJordan{3.4445, -4.7750, 2.0315}, kLast{2.0, -1.5, 0.5};
constexpr std::array<Triple, 5> kSimple{kJordan, kJordan, kJordan, kJordan, kJordan};
constexpr std::array<Triple, 5> kQuintic{Triple{4.0848, -6.8946, 2.9270},
                                         {3.9505, -6.3029, 2.6377},
                                         {3.7418, -5.5913, 2.3037},
                                         {2.8769, -3.1427, 1.2046},
                                         {2.8366, -3.0525, 1.2012}};
constexpr std::array<Triple, 5> kPolarExpress{Triple{8.2051, -22.9019, 16.4607},
                                              {4.0664, -2.8612, 0.5184},
                                              {3.9096, -2.8234, 0.5250},
                                              {3.2856, -2.4153, 0.4853},
                                              {2.2779, -1.6198, 0.3985}};
constexpr std::array<Triple, 5> kPolarExpressNanochat{
    Triple{8.156554524902461, -22.48329292557795, 15.878769915207462},
    {4.042929935166739, -2.808917465908714, 0.5000178451051316},
    {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
    {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
    {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
constexpr std::array<Triple, 10> kDeepSeek{kJordan, kJordan, kJordan, kJordan, kJordan,
                                           kJordan, kJordan, kJordan, kLast,   kLast};
constexpr std::array<NewtonSchulzSet, 5> kSets{
    NewtonSchulzSet{"simple", kSimple}, NewtonSchulzSet{"quintic", kQuintic},
    NewtonSchulzSet{"polar_express", kPolarExpress},
    NewtonSchulzSet{"polar_express_nanochat", kPolarExpressNanochat, 1.01},
    NewtonSchulzSet{"deepseekv4", kDeepSeek}};

/// Elements rounded up to 256 bytes of any type, so that products of all matrices are aligned
/// alike.
std::int64_t with_padding(std::int64_t elements) {
  return (elements + 63) / 64 * 64;
}

}  // namespace

std::span<const NewtonSchulzSet> newton_schulz_sets() {
  return kSets;
}

const NewtonSchulzSet& newton_schulz_set(std::string_view name) {
  const auto found = std::ranges::find(kSets, name, &NewtonSchulzSet::name);
  CHOIR_CHECK(found != kSets.end(), "there are no coefficients '{}'", name);
  return *found;
}

double newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const auto m = static_cast<double>(std::min(rows, columns));
  const auto n = static_cast<double>(std::max(rows, columns));
  return 4 * m * m * n + 2 * m * m * m;
}

NewtonSchulz::NewtonSchulz(const NewtonSchulzSet& set, std::int64_t steps)
    : norm_factor_(set.norm_factor) {
  const auto all = static_cast<std::size_t>(steps > 0 ? steps : std::ssize(set.triples));
  for (std::size_t i = 0; i < all; ++i)
    triples_.push_back(set.triples[std::min(i, set.triples.size() - 1)]);
}

void NewtonSchulz::reserve(Device& device, DType dtype, std::span<const Extents> extents) {
  std::int64_t elements = 0, square = 0;
  for (const Extents& e : extents) {
    elements = std::max(elements, e.rows * e.columns);
    const std::int64_t m = std::min(e.rows, e.columns);
    square = std::max(square, m * m);
  }
  const std::int64_t chunks = (elements + ops::kNormChunk - 1) / ops::kNormChunk;
  const std::int64_t doubles = with_padding(1 + chunks);
  const std::int64_t words = 2 * with_padding(square) + elements;
  memory_ = Buffer(device, static_cast<std::size_t>(doubles) * sizeof(double) +
                               static_cast<std::size_t>(words) * size_of(dtype));
  const TensorView sums{memory_.data(), DType::f64, {doubles}};
  square_sum_ = sums.slice(0, 1);
  chunk_sums_ = sums.slice(1, chunks);
  std::byte* const behind =
      static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(doubles) * sizeof(double);
  const TensorView all{behind, dtype, {words}};
  gram_ = all.slice(0, square);
  polynomial_ = all.slice(with_padding(square), square);
  moved_ = all.slice(2 * with_padding(square), elements);
}

// A tall x is multiplied from the right: x (b s + c s s) with s = x^T x, which is the same as the
// iteration of its transpose.
void NewtonSchulz::orthogonalise(const Stream& stream, const TensorView& x) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1], m = std::min(rows, columns);
  const bool tall = rows > columns;
  const auto of_shape = [](const TensorView& memory, std::int64_t a, std::int64_t b) {
    return memory.slice(0, a * b).reshaped({a, b});
  };
  const TensorView flat = x.reshaped({rows * columns});
  const TensorView sums =
      chunk_sums_.slice(0, (flat.count() + ops::kNormChunk - 1) / ops::kNormChunk);
  ops::sum_of_squares(stream, flat, sums);
  ops::tree_sum(stream, sums, square_sum_);
  ops::divide_by_norm(stream, flat, square_sum_, kLeastNorm);
  if (norm_factor_ != 1) ops::scale(stream, flat, 1 / norm_factor_);
  const TensorView gram = of_shape(gram_, m, m), polynomial = of_shape(polynomial_, m, m);
  const TensorView moved = of_shape(moved_, rows, columns);
  for (const Triple& t : triples_) {
    ops::gemm(stream, x, x, gram, {.transpose_a = tall, .transpose_b = !tall});
    ops::gemm(stream, gram, gram, polynomial);
    ops::weighted_sum(stream, t.b, gram.reshaped({m * m}), t.c, polynomial.reshaped({m * m}),
                      polynomial.reshaped({m * m}));
    tall ? ops::gemm(stream, x, polynomial, moved) : ops::gemm(stream, polynomial, x, moved);
    ops::weighted_sum(stream, t.a, flat, 1, moved.reshaped({rows * columns}), flat);
  }
}

}  // namespace choir
