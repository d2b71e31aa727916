#include <type_traits>

#include "kernels/activation/activation.hpp"
#include "kernels/cpu/logistic.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_math.hpp"

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

template <class T>
void swiglu(const TensorView& x_view, const TensorView& y_view) {
  const std::int64_t width = y_view.shape.back(), rows = y_view.shape.rows();
  parallel_ranges(rows, width * kCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* gate = static_cast<const T*>(x_view.data) + r * 2 * width;
      T* y = static_cast<T*>(y_view.data) + r * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(gate + c);
        access.store(y + c, g * sigmoid(g) * access.load(gate + width + c));
      });
    }
  });
}

template <class T>
void swiglu_slope(const TensorView& x_view, const TensorView& d_y_view,
                  const TensorView& d_x_view) {
  const std::int64_t width = d_y_view.shape.back(), rows = d_y_view.shape.rows();
  parallel_ranges(rows, width * kCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r) {
      const T* gate = static_cast<const T*>(x_view.data) + r * 2 * width;
      const T* d_y = static_cast<const T*>(d_y_view.data) + r * width;
      T* d_gate = static_cast<T*>(d_x_view.data) + r * 2 * width;
      for_vectors<T>(0, width, [&](std::int64_t c, auto access) {
        const Vec<T> g = access.load(gate + c), up = access.load(gate + width + c);
        const Vec<T> dy = access.load(d_y + c);
        const auto p = logistic(g);
        access.store(d_gate + c, dy * up * (p.below + g * p.density));
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
      return swiglu<T>(x, y);
    case ops::Activation::silu:
      return map<T, Silu<T>>(x, y);
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
      return swiglu_slope<T>(x, d_y, d_x);
    case ops::Activation::silu:
      return map_slope<T, Silu<T>>(x, d_y, d_x);
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
