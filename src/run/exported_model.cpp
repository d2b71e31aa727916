#include "src/run/exported_model.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/run/imported_run.hpp"
#include "src/store/finite.hpp"
#include "src/store/store.hpp"

namespace choir {

namespace fs = std::filesystem;

void require_free_output(const std::string& out, bool is_folder) {
  std::error_code ignored;
  const bool empty = is_folder && fs::is_directory(out, ignored) && fs::is_empty(out, ignored);
  if (fs::exists(out, ignored) && !empty)
    throw DeckError(fmt::format("'{}' exists already", out), "choose another path with --out");
}

void make_output_folder(const std::string& out, bool is_folder) {
  const fs::path folder = is_folder ? fs::path(out) : fs::path(out).parent_path();
  std::error_code failed;
  if (!folder.empty()) fs::create_directories(folder, failed);
  if (failed)
    throw StorageError(
        fmt::format("cannot make the folder '{}': {}", folder.string(), failed.message()),
        "choose another path with --out");
}

void for_each_slab(const Checkpoint& checkpoint, Communicator& world, const SlabSource& tensor,
                   const std::function<void(const RowSlab&)>& use) {
  // Limit of a tensor's bytes in the memory of a rank, or one row if that is larger.
  constexpr std::int64_t kSlabBytes = std::int64_t{32} << 20;
  const std::int64_t all = tensor.shape[0], columns = tensor.shape.count() / all;
  const std::size_t row = static_cast<std::size_t>(columns) * size_of(tensor.dtype);
  const std::int64_t rows_of_rank =
      std::max<std::int64_t>(1, kSlabBytes / static_cast<std::int64_t>(row));
  const std::int64_t step = rows_of_rank * world.size();
  std::vector<std::byte> memory;
  for (std::int64_t first = 0; first < all; first += step) {
    const RowShare share = share_of_rows(std::min(step, all - first), world.rank(), world.size());
    memory.assign(static_cast<std::size_t>(share.rows) * row, std::byte{0});
    const RowSlab slab{first + share.first, share.rows, memory.data(), tensor.dtype};
    if (checkpoint.manifest.find(tensor.name) != nullptr)
      load_checkpoint(checkpoint,
                      {{.name = tensor.name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .pieces = {{slab.first * columns, slab.rows * columns, slab.data}},
                        .converts = true}},
                      world, "nothing else");
    together(world, [&] { use(slab); });
  }
}

void require_finite_slab(const Checkpoint& checkpoint, const SlabSource& tensor,
                         const RowSlab& slab) {
  const std::int64_t columns = tensor.shape.count() / tensor.shape[0];
  NotFinite bad;
  bad.look(slab.data, slab.dtype, slab.rows * columns, slab.first * columns);
  if (bad.count > 0)
    throw NumericError(
        fmt::format("the weights of {} are not finite (NaN or infinity): {}, first at element {}",
                    checkpoint.path, tensor.name, bad.first),
        "they are useless to any program: export another checkpoint");
}

}  // namespace choir
