#pragma once
// Bits that look random and are a function of (tensor, element): whoever holds a piece can write
// and check it alone, and replicas are equal.
#include <cstdint>
#include <vector>

#include "choir/store/stored_tensor.hpp"

namespace choir {

void fill_pieces(const std::vector<StoredTensor>& tensors);
/// So that nothing of it is left.
void spoil_pieces(const std::vector<StoredTensor>& tensors);
/// Elements that are not what fill_pieces() writes.
std::int64_t wrong_elements(const std::vector<StoredTensor>& tensors);

}  // namespace choir
