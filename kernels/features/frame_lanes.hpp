#pragma once
// Real transforms of several frames in parallel, one per vector lane. An instruction works on the
// same element of all frames, and a frame does not depend on the others or on the width of the
// vector.

#include "kernels/cpu/simd.hpp"
#include "kernels/features/features.hpp"

namespace choir::cpu {

/// Transforms kCount complex numbers z (real, imaginary) of every lane in place; frequency k ends
/// up at spectrum_position(k). `roots` are the 2 kCount roots of the tables.
template <class T, int kCount>
inline void transform(Vec<T>* z, const T* roots) {
  using V = Vec<T>;
  int n = kCount;
  for (; n >= 4; n /= 4) {
    const int quarter = n / 4, step = 2 * kCount / n;
    for (int base = 0; base < kCount; base += n)
      for (int j = 0; j < quarter; ++j) {
        V *p0 = z + 2 * (base + j), *p1 = p0 + 2 * quarter, *p2 = p1 + 2 * quarter,
          *p3 = p2 + 2 * quarter;
        const V sum_re = p0[0] + p2[0], sum_im = p0[1] + p2[1];
        const V gap_re = p0[0] - p2[0], gap_im = p0[1] - p2[1];
        const V odd_re = p1[0] + p3[0], odd_im = p1[1] + p3[1];
        const V odd_gap_re = p1[0] - p3[0], odd_gap_im = p1[1] - p3[1];
        const V re1 = gap_re + odd_gap_im, im1 = gap_im - odd_gap_re;
        const V re2 = sum_re - odd_re, im2 = sum_im - odd_im;
        const V re3 = gap_re - odd_gap_im, im3 = gap_im + odd_gap_re;
        p0[0] = sum_re + odd_re, p0[1] = sum_im + odd_im;
        if (quarter == 1) {
          p1[0] = re1, p1[1] = im1, p2[0] = re2, p2[1] = im2, p3[0] = re3, p3[1] = im3;
          continue;
        }
        const T *w1 = roots + 2 * j * step, *w2 = roots + 4 * j * step, *w3 = roots + 6 * j * step;
        p1[0] = re1 * w1[0] - im1 * w1[1], p1[1] = re1 * w1[1] + im1 * w1[0];
        p2[0] = re2 * w2[0] - im2 * w2[1], p2[1] = re2 * w2[1] + im2 * w2[0];
        p3[0] = re3 * w3[0] - im3 * w3[1], p3[1] = re3 * w3[1] + im3 * w3[0];
      }
  }
  if (n != 2) return;
  for (int i = 0; i < kCount; i += 2) {
    V* p = z + 2 * i;
    const V re = p[0], im = p[1];
    p[0] = re + p[2], p[1] = im + p[3], p[2] = re - p[2], p[3] = im - p[3];
  }
}

/// Computes 4 |X[k]|^2 into z[power_slot(k)], k = 0 ... kCount, from the output of transform() for
/// 2 kCount real numbers.
template <int kCount>
inline int power_slot(int k) {
  return k == kCount ? 1 : 2 * spectrum_position(k, kCount);
}
template <class T, int kCount>
inline void power(Vec<T>* z, const T* roots, const int* slots) {
  using V = Vec<T>;
  for (int k = 0; k <= kCount / 2; ++k) {
    V *a = z + slots[k], *b = z + slots[k == 0 ? 0 : kCount - k];
    const V even_re = a[0] + b[0], even_im = a[1] - b[1];
    const V odd_re = a[1] + b[1], odd_im = b[0] - a[0];
    const T* w = roots + 2 * k;
    const V re = odd_re * w[0] - odd_im * w[1], im = odd_re * w[1] + odd_im * w[0];
    const V low_re = even_re + re, low_im = even_im + im;
    const V high_re = even_re - re, high_im = even_im - im;
    const V high = high_re * high_re + high_im * high_im;
    z[slots[k]] = low_re * low_re + low_im * low_im;
    if (2 * k != kCount) z[slots[kCount - k]] = high;
  }
}

}  // namespace choir::cpu
