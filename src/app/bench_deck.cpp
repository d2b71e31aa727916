#include "src/app/bench_deck.hpp"

#include "choir/app/session.hpp"
#include "choir/comm/agreement.hpp"
#include "choir/train/deck/deck_layout.hpp"
#include "choir/train/engine/run_setup.hpp"

namespace choir {

BenchDeck open_bench_deck(MpiSession& session, const BenchWords& words,
                          const std::function<void()>& also) {
  BenchDeck opened;
  {
    const auto world = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    opened.text = read_everywhere(world->world(), words.deck);
    together(world->world(), [&] {
      Arguments overrides = words.overrides;
      if (!words.device.empty()) overrides.push_back("device=" + words.device);
      opened.deck = parse_deck(opened.text, words.deck, overrides);
      also();
    });
  }
  Workplace& place = opened.place;
  place.mesh = Mesh::over_world(layout_of(opened.deck, session.size()), transport_of(opened.deck));
  choose_threads(place.mesh->node());
  open_device(place, opened.deck);
  return opened;
}

}  // namespace choir
