#include "src/data/tokens/node_memory.hpp"

#include <cstring>

#include "choir/core/error.hpp"
#include "src/data/tokens/mpi_group.hpp"

namespace choir {

NodeMemory::NodeMemory(MPI_Comm node, std::size_t bytes, bool contiguous) : node_(node) {
  int size = 1;
  MPI_Comm_rank(node_, &rank_);
  MPI_Comm_size(node_, &size);
  MPI_Info info;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", contiguous ? "false" : "true");
  char* mine = nullptr;
  const int code =
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, info, node_, &mine, &window_);
  MPI_Info_free(&info);
  if (code != MPI_SUCCESS)
    throw CommError(
        fmt::format("cannot allocate {} bytes of node-shared memory: {}", bytes, mpi_text(code)),
        "is /dev/shm full or small? data.reader 'own' needs none");
  parts_.resize(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    MPI_Aint length = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, rank, &length, &unit, &parts_[static_cast<std::size_t>(rank)]);
  }
  MPI_Win_lock_all(MPI_MODE_NOCHECK, window_);
  // First touch places the pages near their owner.
  if (bytes > 0) std::memset(mine, 0, bytes);
}

NodeMemory::~NodeMemory() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
  MPI_Comm_free(&node_);
}

}  // namespace choir
