#pragma once
// What the elements of a bucket are called in every layout: the number of an element in the model,
// for random numbers that belong to it. A rank that has a part of a tensor, or of a bucket, draws
// for its elements what one rank with the whole model would.
#include <vector>

#include "choir/ops/adamw.hpp"
#include "choir/parallel/sharding.hpp"

namespace choir {

struct ElementSpan {
  Range local;  ///< of the bucket as this rank holds it, in elements
  ops::ElementNumbers elements;
};

/// Of a placed bucket, in order, as few as there can be: one where each tensor is whole, else about
/// one a tensor. Elements in none are padding.
std::vector<ElementSpan> element_spans(const Bucket& bucket);

}  // namespace choir
