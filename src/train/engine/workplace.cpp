#include "choir/train/engine/workplace.hpp"

#include "choir/comm/agreement.hpp"

namespace choir {
namespace {

DeviceTransport::Way way_of(const Deck& deck) {
  const std::string& transport = deck.parallel.transport;
  if (transport == "auto") return DeviceTransport::Way::automatic;
  if (transport == "nccl") return DeviceTransport::Way::nccl;
  return DeviceTransport::Way::staged;  // by the host's transport of that name
}

}  // namespace

void open_device(Workplace& place, const Deck& deck) {
  Mesh& mesh = *place.mesh;
  const DeviceChoice choice = choose_device(mesh, {.device = deck.device,
                                                   .fp64 = deck.train.precision == "fp64",
                                                   .share = deck.parallel.share_device});
  place.device_reason = choice.reason;
  together(mesh.world(), [&] {
    const std::string& transport = deck.parallel.transport;
    if (choice.kind == DeviceKind::cpu && (transport == "nccl" || transport == "staged"))
      throw DeckError(fmt::format("parallel.transport is \"{}\", for memory of GPUs, but the "
                                  "device is the CPU ({})",
                                  transport, choice.reason),
                      "set parallel.transport to \"auto\"");
    place.device = make_device(choice.kind, choice.ordinal);
  });
  mesh.attach(*place.device, {.way = way_of(deck),
                              .shared_cards = choice.shared_cards,
                              .timeout_seconds = deck.parallel.timeout,
                              .nccl_library = {}});
  if (deck.watch.calls) mesh.check_calls();
}

}  // namespace choir
