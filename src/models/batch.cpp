#include "choir/models/batch.hpp"

#include "choir/core/error.hpp"

namespace choir {

void ModelBatch::add(const BatchField& field) {
  CHOIR_CHECK(count_ < kMostFields && find(field.name) == nullptr, "no room for field {} of {}",
              field.name, count_);
  fields_[count_++] = field;
}

const TensorView* ModelBatch::find(std::string_view name) const {
  for (const BatchField& field : fields())
    if (field.name == name) return &field.view;
  return nullptr;
}

const TensorView& ModelBatch::operator[](std::string_view name) const {
  const TensorView* const view = find(name);
  CHOIR_CHECK(view != nullptr, "this micro-batch has no field '{}'", name);
  return *view;
}

std::size_t padded_field_bytes(const TensorView& field) {
  constexpr std::size_t kAlignment = 64;
  return (field.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of_fields(const ModelBatch& batch) {
  std::size_t bytes = 0;
  for (const BatchField& field : batch.fields())
    if (field.view.shape.rank() > 0) bytes += padded_field_bytes(field.view);
  return bytes;
}

}  // namespace choir
