#include "src/store/collectives.hpp"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"

namespace choir {

std::string attempt_together(Communicator& world, const std::function<void()>& action) {
  try {
    together(world, [&] {
      try {
        action();
      } catch (const StorageError&) {
        throw;
      } catch (const std::exception& error) {
        throw StorageError(plain_cause(error));
      }
    });
  } catch (const StorageError& error) {
    return error.hint().empty() ? error.what()
                                : fmt::format("{} -> {}", error.what(), error.hint());
  }
  return {};
}

void share_text(Communicator& world, std::string& text) {
  auto bytes = static_cast<std::int64_t>(text.size());
  world.broadcast(&bytes, sizeof bytes, 0);
  text.resize(static_cast<std::size_t>(bytes));
  if (bytes > 0) world.broadcast(text.data(), text.size(), 0);
}

void exclusive_or(Communicator& world, std::vector<std::uint32_t>& values) {
  if (values.empty() || world.size() == 1) return;
  const std::size_t bytes = values.size() * sizeof(std::uint32_t);
  const int rank = world.rank(), ranks = world.size();
  std::vector<std::uint32_t> theirs(values.size());
  // Reduces along a tree, so that a rank receives from at most log2 of the ranks.
  for (int distance = 1; distance < ranks; distance *= 2) {
    if ((rank & distance) != 0) {
      world.send(values.data(), bytes, rank - distance, 0);
      break;
    }
    if (rank + distance >= ranks) continue;
    world.receive(theirs.data(), bytes, rank + distance, 0);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] ^= theirs[i];
  }
  world.broadcast(values.data(), bytes, 0);
}

void patient_barrier(Communicator& world) {
  if (world.size() == 1) return;
  constexpr auto kPause = std::chrono::microseconds(500);
  std::int64_t nothing = 0;
  CommRequest& request = world.start_all_reduce(&nothing, 1, DType::i64, ReduceOp::sum);
  while (!request.test()) std::this_thread::sleep_for(kPause);
  request.wait();
}

}  // namespace choir
