#pragma once
// Gradients of small parameters that a kernel adds on its way to the gradient of its input. Where
// the pass postpones weight gradients the sums go into memory of their own, and what is postponed
// is their addition.
#include <utility>

#include "choir/nn/parameter.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class SideGradient {
 public:
  /// Of a frozen parameter: whether the kernel can leave the sums out, or they go where nobody
  /// reads them.
  enum class Frozen { left_out, discarded };
  /// `parameter` nullptr: there is none, and view() is empty.
  SideGradient(Pass& pass, Parameter* parameter, Frozen frozen = Frozen::left_out);
  /// What the kernel adds to, of the gradient's shape.
  TensorView view() const;
  /// After the kernel.
  void finish(Pass& pass);

 private:
  static void add(Pass& pass, void* parameter, const Tensor& sums, const Tensor& none);

  Parameter* parameter_;  // nullptr: none, or frozen
  Tensor own_;
};

}  // namespace choir
