#pragma once
// Pseudo-random contents as a function of (tensor, element): every rank can write and check its
// pieces alone, and replicas are equal.
#include <cstdint>
#include <vector>

#include "choir/store/stored_tensor.hpp"

namespace choir {

void fill_pieces(const std::vector<StoredTensor>& tensors);
/// Overwrites the contents with zeros.
void spoil_pieces(const std::vector<StoredTensor>& tensors);
/// Number of elements that differ from those of fill_pieces().
std::int64_t wrong_elements(const std::vector<StoredTensor>& tensors);

}  // namespace choir
