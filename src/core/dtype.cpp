#include "choir/core/dtype.hpp"

#include <array>
#include <string>

#include "choir/core/error.hpp"

namespace choir {
namespace {

struct Entry {
  std::string_view name;
  std::size_t bytes;
};
// The order is that of the enumeration.
constexpr std::array<Entry, 8> kTypes{{{"f64", 8},
                                       {"f32", 4},
                                       {"bf16", 2},
                                       {"f16", 2},
                                       {"i64", 8},
                                       {"i32", 4},
                                       {"u16", 2},
                                       {"u8", 1}}};

}  // namespace

std::size_t size_of(DType type) {
  return kTypes[static_cast<std::size_t>(type)].bytes;
}

std::string_view name_of(DType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

DType dtype_of(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i].name == name) return static_cast<DType>(i);
  throw Error(ExitCode::other, "unknown element type '" + std::string(name) + "'");
}

}  // namespace choir
