#include "src/store/plain_file.hpp"

#include <algorithm>
#include <array>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "src/store/slab_io.hpp"

namespace choir {

std::int64_t bytes_of(const StoredTensor& tensor, const StoredPiece& piece) {
  return piece.count * static_cast<std::int64_t>(size_of(tensor.dtype));
}

AccessRound slowest_of(Communicator& world, const AccessRound& mine) {
  std::array<double, 5> t{mine.open, mine.transfer, mine.sync, mine.close, mine.total};
  world.all_reduce(t.data(), t.size(), DType::f64, ReduceOp::max);
  return {t[0], t[1], t[2], t[3], t[4]};
}

/// Calls `action(tensor, address, bytes, offset in the plain file)`.
template <class Action>
void PlainFile::over_transfers(const Action& action) const {
  std::int64_t at = first_;
  for (const StoredTensor& tensor : tensors_)
    for (const StoredPiece& piece : tensor.pieces) {
      const std::int64_t bytes = bytes_of(tensor, piece);
      for (std::int64_t done = 0; done < bytes; done += transfer_bytes_) {
        const std::int64_t now = std::min(transfer_bytes_, bytes - done);
        action(tensor, static_cast<std::byte*>(piece.data) + done, now, at + done);
      }
      at += bytes;
    }
}

AccessRound PlainFile::write() const {
  AccessRound time;
  std::vector<std::byte> staging(static_cast<std::size_t>(transfer_bytes_));
  together(world_, [&] {
    if (world_.rank() == 0) File(path_, File::Mode::create).close();
  });
  world_.barrier();
  together(world_, [&] {
    const double start = now_seconds();
    File file(path_, File::Mode::write);
    const double opened = now_seconds();
    over_transfers(
        [&](const StoredTensor& tensor, std::byte* from, std::int64_t bytes, std::int64_t at) {
          const bool beside = tensor.device != nullptr && !tensor.device->host_visible();
          if (beside)
            tensor.device->copy_to_host(staging.data(), from, static_cast<std::size_t>(bytes));
          file.write_at(beside ? staging.data() : from, bytes, at);
        });
    const double written = now_seconds();
    file.sync();
    const double synced = now_seconds();
    file.forget();
    file.close();
    const double end = now_seconds();
    time = {opened - start, written - opened, synced - written, end - synced, end - start};
  });
  return slowest_of(world_, time);
}

AccessRound PlainFile::read() const {
  AccessRound time;
  std::vector<std::byte> staging(static_cast<std::size_t>(transfer_bytes_));
  world_.barrier();
  together(world_, [&] {
    const double start = now_seconds();
    const File file(path_, File::Mode::read);
    const double opened = now_seconds();
    over_transfers(
        [&](const StoredTensor& tensor, std::byte* to, std::int64_t bytes, std::int64_t at) {
          const bool beside = tensor.device != nullptr && !tensor.device->host_visible();
          file.read_at(beside ? staging.data() : to, bytes, at);
          if (beside)
            tensor.device->copy_from_host(to, staging.data(), static_cast<std::size_t>(bytes));
        });
    const double end = now_seconds();
    time = {opened - start, end - opened, 0, 0, end - start};
  });
  return slowest_of(world_, time);
}

}  // namespace choir
