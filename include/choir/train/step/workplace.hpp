#pragma once
// Where a program works: its ranks, the device of each, and how they talk.
#include <memory>
#include <string>

#include "choir/comm/mesh/device_choice.hpp"
#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

struct Workplace {
  std::unique_ptr<Device> device;  ///< before the mesh, whose communicators use its memory
  std::unique_ptr<Mesh> mesh;
  std::string device_reason;  ///< why device=auto became what it is; empty when it was not auto
};

/// Collective over the world of `place.mesh`: chooses the device that the deck asks for (device,
/// parallel.share_device, parallel.transport; nothing is computed in fp64 on GPUs), makes it, and
/// attaches it to the mesh. DeckError on every rank when it cannot be had.
void open_device(Workplace& place, const Deck& deck);

/// Collective over the node. Without OMP_NUM_THREADS the ranks that share the same cores divide
/// them; returns the number of threads chosen.
int choose_threads(Communicator& node);

}  // namespace choir
