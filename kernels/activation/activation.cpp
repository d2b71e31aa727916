// The nonlinearities and gated linear units: checks, dispatch, CPU twins and fp64 reference.

#include "kernels/activation/activation.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "choir/ops/activation.hpp"
#include "kernels/cpu/frames.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

/// Operations per element: relu counts as one, the others as 30 because of one exp and one
/// division.
double flops(Activation kind, std::int64_t n) {
  return (kind == Activation::relu ? 1.0 : 30.0) * static_cast<double>(n);
}

}  // namespace

void activation_forward(const Stream& stream, Activation kind, const TensorView& x,
                        const TensorView& y) {
  CHOIR_CHECK(y.shape.rank() > 0 && x.shape.rank() > 0, "activation of a scalar");
  CHOIR_CHECK(x.shape.back() == y.shape.back() * activation_inputs(kind),
              "input of width {} for output of width {}", x.shape.back(), y.shape.back());
  check_tensor(x, y.dtype, y.count() * activation_inputs(kind), "x");
  check_tensor(y, y.dtype, y.count(), "y");
  CHOIR_CHECK(!is_gated(kind) || x.data != y.data, "a gated kind does not run in place");
  stream.count(flops(kind, y.count()), as_bytes(x) + as_bytes(y));
  if (on_cuda(stream)) return cuda::activation_forward(stream, kind, x, y);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::activation_forward<decltype(t)>(kind, x, y); });
}

void activation_backward(const Stream& stream, Activation kind, const TensorView& x,
                         const TensorView& d_y, const TensorView& d_x) {
  CHOIR_CHECK(d_y.shape.rank() > 0 && x.shape.rank() > 0, "activation of a scalar");
  CHOIR_CHECK(x.shape.back() == d_y.shape.back() * activation_inputs(kind),
              "input of width {} for output of width {}", x.shape.back(), d_y.shape.back());
  check_tensor(x, d_y.dtype, d_y.count() * activation_inputs(kind), "x");
  check_tensor(d_y, d_y.dtype, d_y.count(), "d_y");
  check_tensor(d_x, d_y.dtype, x.count(), "d_x");
  stream.count(flops(kind, d_y.count()), as_bytes(x) + as_bytes(d_y) + as_bytes(d_x));
  if (on_cuda(stream)) return cuda::activation_backward(stream, kind, x, d_y, d_x);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::activation_backward<decltype(t)>(kind, x, d_y, d_x); });
}

namespace {

void check_pair(const TensorView& gated, const TensorView& plain, const std::int32_t* lengths,
                std::int64_t tokens) {
  CHOIR_CHECK(plain.shape.rank() > 0 && gated.shape.rank() > 0, "glu of a scalar");
  CHOIR_CHECK(gated.shape.back() == 2 * plain.shape.back(), "input of width {} for output of {}",
              gated.shape.back(), plain.shape.back());
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && plain.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", plain.shape.rows(), tokens);
  check_tensor(gated, plain.dtype, 2 * plain.count(), "x");
}

}  // namespace

void glu_forward(const Stream& stream, const TensorView& x, const TensorView& y,
                 const std::int32_t* lengths, std::int64_t tokens) {
  check_pair(x, y, lengths, tokens);
  check_tensor(y, y.dtype, y.count(), "y");
  CHOIR_CHECK(x.data != y.data, "glu does not run in place");
  stream.count(30.0 * static_cast<double>(y.count()), as_bytes(x) + as_bytes(y));
  if (on_cuda(stream)) return cuda::glu_forward(stream, x, y, lengths, tokens);
  if (!computes(stream)) return;
  with_element(x.dtype, [&](auto t) { cpu::glu_forward<decltype(t)>(x, y, lengths, tokens); });
}

void glu_backward(const Stream& stream, const TensorView& x, const TensorView& d_y,
                  const TensorView& d_x, const std::int32_t* lengths, std::int64_t tokens) {
  check_pair(x, d_y, lengths, tokens);
  check_tensor(d_y, d_y.dtype, d_y.count(), "d_y");
  check_tensor(d_x, d_y.dtype, x.count(), "d_x");
  CHOIR_CHECK(d_x.data != d_y.data, "glu does not run in place of d_y");
  stream.count(30.0 * static_cast<double>(d_y.count()),
               as_bytes(x) + as_bytes(d_y) + as_bytes(d_x));
  if (on_cuda(stream)) return cuda::glu_backward(stream, x, d_y, d_x, lengths, tokens);
  if (!computes(stream)) return;
  with_element(x.dtype,
               [&](auto t) { cpu::glu_backward<decltype(t)>(x, d_y, d_x, lengths, tokens); });
}

void mask_frames(const Stream& stream, const TensorView& x, const std::int32_t* lengths,
                 std::int64_t tokens) {
  CHOIR_CHECK(x.shape.rank() > 0, "frames of a scalar");
  CHOIR_CHECK(lengths == nullptr || (tokens > 0 && x.shape.rows() % tokens == 0),
              "{} rows are not whole samples of {} frames", x.shape.rows(), tokens);
  check_tensor(x, x.dtype, x.count(), "x");
  stream.count(0, lengths == nullptr ? 0 : as_bytes(x));
  if (lengths == nullptr) return;
  if (on_cuda(stream)) return cuda::mask_frames(stream, x, lengths, tokens);
  if (!computes(stream)) return;
  cpu::mask_frames(x, lengths, tokens);
}

}  // namespace choir::ops

namespace choir::cpu {
namespace {

constexpr double kTwoRootTwoOverPi = 1.59576912160573071176;  // 2 sqrt(2 / pi)
constexpr double kCubic = 0.044715;
constexpr std::int64_t kCost = 4;  // work in units of a copy

struct Gelu {
  template <class V>
  static V value(V x) {
    return x * normal(x).below;
  }
  template <class V>
  static V slope(V x) {
    const auto p = normal(x);
    return p.below + x * p.density;
  }
};

/// The same for bf16; the exact form would compute digits that are rounded away when stored.
struct ShortGelu {
  static Floats value(Floats x) { return x * short_normal(x).below; }
  static Floats slope(Floats x) {
    const auto p = short_normal(x);
    return p.below + x * p.density;
  }
};
template <class T>
using GeluFor = std::conditional_t<std::is_same_v<T, bf16>, ShortGelu, Gelu>;

/// x s(z), z = 2u(x). Beyond |x| = 30 s is 0 or 1 to all digits, and x^2 stays finite.
struct GeluTanh {
  template <class V>
  static V clamped(V x) {
    using A = decltype(x[0] + x[0]);
    const V low = x < A(-30) ? V{} - A(30) : x;
    return low > A(30) ? V{} + A(30) : low;
  }
  template <class V>
  static V value(V x) {
    using A = decltype(x[0] + x[0]);
    const V c = clamped(x);
    return x * sigmoid(A(kTwoRootTwoOverPi) * (c + A(kCubic) * c * c * c));
  }
  template <class V>
  static V slope(V x) {
    using A = decltype(x[0] + x[0]);
    const V c = clamped(x);
    const auto p = logistic(A(kTwoRootTwoOverPi) * (c + A(kCubic) * c * c * c));
    return p.below + c * p.density * A(kTwoRootTwoOverPi) * (1 + A(3 * kCubic) * c * c);
  }
};

struct Relu {
  template <class V>
  static V value(V x) {
    return x < 0 ? V{} : x;  // NaN is preserved
  }
  template <class V>
  static V slope(V x) {
    return x > 0 ? V{} + 1 : V{};
  }
};

template <class T>
struct Silu {
  static Vec<T> value(Vec<T> x) { return x * logistic_for<T>(x).below; }
  static Vec<T> slope(Vec<T> x) {
    const auto p = logistic_for<T>(x);
    return p.below + x * p.density;
  }
};

template <class T, class F>
void map(const TensorView& x_view, const TensorView& y_view) {
  const auto* x = static_cast<const T*>(x_view.data);
  auto* y = static_cast<T*>(y_view.data);
  parallel_flat(
      x_view.count(),
      [&](std::int64_t first, std::int64_t last) {
        for_vectors<T>(first, last, [&](std::int64_t i, auto access) {
          access.store(y + i, F::value(access.load(x + i)));
        });
      },
      kCost);
}

template <class T, class F>
void map_slope(const TensorView& x_view, const TensorView& d_y_view, const TensorView& d_x_view) {
  const auto *x = static_cast<const T*>(x_view.data), *d_y = static_cast<const T*>(d_y_view.data);
  auto* d_x = static_cast<T*>(d_x_view.data);
  parallel_flat(
      x_view.count(),
      [&](std::int64_t first, std::int64_t last) {
        for_vectors<T>(first, last, [&](std::int64_t i, auto access) {
          access.store(d_x + i, access.load(d_y + i) * F::slope(access.load(x + i)));
        });
      },
      kCost);
}

/// The gates of gated kinds: a function g below(g), and its slope.
struct Swish {
  template <class V>
  static V below(V g) {
    return sigmoid(g);
  }
  template <class V>
  static Logistic<V> parts(V g) {
    return logistic(g);
  }
  template <class V>
  static V slope(V g, const Logistic<V>& p) {
    return p.below + g * p.density;
  }
};
struct TanhGate {
  template <class V>
  static V twice_u(V c) {
    using A = decltype(c[0] + c[0]);
    return A(kTwoRootTwoOverPi) * (c + A(kCubic) * c * c * c);
  }
  template <class V>
  static V below(V g) {
    return sigmoid(twice_u(GeluTanh::clamped(g)));
  }
  template <class V>
  static Logistic<V> parts(V g) {
    return logistic(twice_u(GeluTanh::clamped(g)));
  }
  template <class V>
  static V slope(V g, const Logistic<V>& p) {
    using A = decltype(g[0] + g[0]);
    const V c = GeluTanh::clamped(g);
    return p.below + c * p.density * A(kTwoRootTwoOverPi) * (1 + A(3 * kCubic) * c * c);
  }
};

template <class T, class Gate>
void gated(const TensorView& x_view, const TensorView& y_view) {
  const std::int64_t width = y_view.shape.back(), rows = y_view.shape.rows();
  parallel_ranges(rows, width * kCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* gate = static_cast<const T*>(x_view.data) + r * 2 * width;
      T* y = static_cast<T*>(y_view.data) + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(gate + c);
        access.store(y + c, g * Gate::below(g) * access.load(gate + width + c));
      });
    }
  });
}

template <class T, class Gate>
void gated_slope(const TensorView& x_view, const TensorView& d_y_view, const TensorView& d_x_view) {
  const std::int64_t width = d_y_view.shape.back(), rows = d_y_view.shape.rows();
  parallel_ranges(rows, width * kCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* gate = static_cast<const T*>(x_view.data) + r * 2 * width;
      const T* d_y = static_cast<const T*>(d_y_view.data) + r * width;
      T* d_gate = static_cast<T*>(d_x_view.data) + r * 2 * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(gate + c), up = access.load(gate + width + c);
        const Vec<T> dy = access.load(d_y + c);
        const auto p = Gate::parts(g);
        access.store(d_gate + c, dy * up * Gate::slope(g, p));
        access.store(d_gate + width + c, dy * g * p.below);
      });
    }
  });
}

}  // namespace

template <class T>
void activation_forward(ops::Activation kind, const TensorView& x, const TensorView& y) {
  switch (kind) {
    case ops::Activation::gelu:
      return map<T, GeluFor<T>>(x, y);
    case ops::Activation::gelu_tanh:
      return map<T, GeluTanh>(x, y);
    case ops::Activation::relu:
      return map<T, Relu>(x, y);
    case ops::Activation::swiglu:
      return gated<T, Swish>(x, y);
    case ops::Activation::silu:
      return map<T, Silu<T>>(x, y);
    case ops::Activation::geglu:
      return gated<T, TanhGate>(x, y);
  }
}

template <class T>
void activation_backward(ops::Activation kind, const TensorView& x, const TensorView& d_y,
                         const TensorView& d_x) {
  switch (kind) {
    case ops::Activation::gelu:
      return map_slope<T, GeluFor<T>>(x, d_y, d_x);
    case ops::Activation::gelu_tanh:
      return map_slope<T, GeluTanh>(x, d_y, d_x);
    case ops::Activation::relu:
      return map_slope<T, Relu>(x, d_y, d_x);
    case ops::Activation::swiglu:
      return gated_slope<T, Swish>(x, d_y, d_x);
    case ops::Activation::silu:
      return map_slope<T, Silu<T>>(x, d_y, d_x);
    case ops::Activation::geglu:
      return gated_slope<T, TanhGate>(x, d_y, d_x);
  }
}

#define CHOIR_INSTANTIATE(T)                                                                  \
  template void activation_forward<T>(ops::Activation, const TensorView&, const TensorView&); \
  template void activation_backward<T>(ops::Activation, const TensorView&, const TensorView&, \
                                       const TensorView&);
CHOIR_INSTANTIATE(double)
CHOIR_INSTANTIATE(float)
CHOIR_INSTANTIATE(bf16)
CHOIR_INSTANTIATE(f16)
#undef CHOIR_INSTANTIATE

}  // namespace choir::cpu

namespace choir::ref {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

double value(ops::Activation kind, double x) {
  switch (kind) {
    case ops::Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ops::Activation::gelu_tanh:
    case ops::Activation::geglu:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ops::Activation::relu:
      return x < 0 ? 0 : x;
    case ops::Activation::swiglu:
    case ops::Activation::silu:
      return x * logistic(x);
  }
  return NAN;
}

double slope(ops::Activation kind, double x) {
  switch (kind) {
    case ops::Activation::gelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
    case ops::Activation::gelu_tanh:
    case ops::Activation::geglu: {
      const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
      return 0.5 * (1 + std::tanh(u)) + 0.5 * x / (std::cosh(u) * std::cosh(u)) *
                                            std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    case ops::Activation::relu:
      return x > 0 ? 1 : 0;
    case ops::Activation::swiglu:
    case ops::Activation::silu:
      return logistic(x) * (1 + x * (1 - logistic(x)));
  }
  return NAN;
}

}  // namespace

void activation_forward(ops::Activation kind, const TensorView& x, const TensorView& y) {
  const std::int64_t width = y.shape.back();
  const double* in = x.as<double>();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t r = i / width, c = i % width;
    y.as<double>()[i] = ops::is_gated(kind)
                            ? value(kind, in[2 * r * width + c]) * in[(2 * r + 1) * width + c]
                            : value(kind, in[i]);
  }
}

void activation_backward(ops::Activation kind, const TensorView& x, const TensorView& d_y,
                         const TensorView& d_x) {
  const std::int64_t width = d_y.shape.back();
  const double *in = x.as<double>(), *dy = d_y.as<double>();
  double* dx = d_x.as<double>();
  for (std::int64_t i = 0; i < d_y.count(); ++i) {
    if (!ops::is_gated(kind)) {
      dx[i] = dy[i] * slope(kind, in[i]);
      continue;
    }
    const std::int64_t gate = 2 * (i / width) * width + i % width, up = gate + width;
    dx[gate] = dy[i] * in[up] * slope(kind, in[gate]);
    dx[up] = dy[i] * value(kind, in[gate]);
  }
}

void glu_forward(const TensorView& x, const TensorView& y, const std::int32_t* lengths,
                 std::int64_t tokens) {
  const std::int64_t width = y.shape.back();
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const std::int64_t r = i / width, at = 2 * r * width + i % width;
    const bool counts = r % tokens < frames_of(lengths, r / tokens, tokens);
    y.as<double>()[i] = counts ? x.as<double>()[at] * logistic(x.as<double>()[at + width]) : 0.0;
  }
}

void glu_backward(const TensorView& x, const TensorView& d_y, const TensorView& d_x,
                  const std::int32_t* lengths, std::int64_t tokens) {
  const std::int64_t width = d_y.shape.back();
  for (std::int64_t i = 0; i < d_y.count(); ++i) {
    const std::int64_t r = i / width, at = 2 * r * width + i % width;
    const bool counts = r % tokens < frames_of(lengths, r / tokens, tokens);
    const double g = d_y.as<double>()[i], a = x.as<double>()[at];
    const double gate = x.as<double>()[at + width], s = logistic(gate);
    d_x.as<double>()[at] = counts ? g * s : 0;
    d_x.as<double>()[at + width] = counts ? g * a * s * logistic(-gate) : 0;
  }
}

}  // namespace choir::ref
