#pragma once
// The resources of a program: its ranks, the device of each, and their communication.
#include <memory>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "src/comm/mesh/device_choice.hpp"

namespace choir {

struct Workplace {
  std::unique_ptr<Device> device;  ///< before the mesh, whose communicators use its memory
  std::unique_ptr<Mesh> mesh;
  std::string device_reason;  ///< reason for the choice of device=auto; empty otherwise
};

/// Chooses the device that the deck requests (device, parallel.share_device, parallel.transport;
/// GPUs do not compute in fp64), opens it, and attaches it to the mesh. Throws DeckError on every
/// rank if it is not available. Collective over the world of `place.mesh`.
void open_device(Workplace& place, const Deck& deck);

/// Without OMP_NUM_THREADS, divides cores among the ranks that share them; returns the number of
/// threads. Collective over the node.
int choose_threads(Communicator& node);

}  // namespace choir
