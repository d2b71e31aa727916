#include "src/models/gpt/foreign/part_io.hpp"

#include <cstring>

namespace choir {
namespace {

/// Copies between elements `stride` apart in a slab and adjacent elements.
template <class Copy>
void over_strided(const PartRun& run, std::byte* slab, std::byte* packed, std::size_t width,
                  const Copy& copy) {
  for (std::int64_t i = 0; i < run.count; ++i)
    copy(slab + static_cast<std::size_t>(run.slab + i * run.stride) * width,
         packed + static_cast<std::size_t>(i) * width, width);
}

}  // namespace

std::int64_t read_part(const TensorReader& from, const std::string& name, const TensorPart& part,
                       const RowSlab& to, FiniteCheck& check) {
  const std::size_t width = size_of(to.dtype);
  std::vector<std::byte> packed;
  std::int64_t elements = 0;
  for (const PartRun& run : runs_of(part, to.first, to.rows)) {
    elements += run.count;
    if (run.stride == 1) {
      std::byte* const own = to.data + static_cast<std::size_t>(run.slab) * width;
      from.read(name, run.there, run.count, own, to.dtype);
      check.look(name, own, to.dtype, run.count, run.there);
      continue;
    }
    packed.resize(static_cast<std::size_t>(run.count) * width);
    from.read(name, run.there, run.count, packed.data(), to.dtype);
    check.look(name, packed.data(), to.dtype, run.count, run.there);
    over_strided(run, to.data, packed.data(), width,
                 [](std::byte* own, const std::byte* there, std::size_t bytes) {
                   std::memcpy(own, there, bytes);
                 });
  }
  return elements;
}

void write_part(TensorWriter& to, const TensorPart& part, const RowSlab& from) {
  const std::size_t width = size_of(from.dtype);
  std::vector<std::byte> packed;
  for (const PartRun& run : runs_of(part, from.first, from.rows)) {
    const std::byte* data = from.data + static_cast<std::size_t>(run.slab) * width;
    if (run.stride != 1) {
      packed.resize(static_cast<std::size_t>(run.count) * width);
      over_strided(run, from.data, packed.data(), width,
                   [](const std::byte* own, std::byte* there, std::size_t bytes) {
                     std::memcpy(there, own, bytes);
                   });
      data = packed.data();
    }
    to.write(part.name, run.there, run.count, data, from.dtype);
  }
}

}  // namespace choir
