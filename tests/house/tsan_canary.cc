// A deliberate data race: two threads add to one plain integer with nothing between them. ThreadSanitizer must report
// it, or its silence about the rest of the tree means nothing.
#include <cstdio>
#include <thread>

namespace {

int counter = 0;

void Count() {
  for (int i = 0; i < 1000; ++i) ++counter;
}

}  // namespace

int main() {
  std::thread first(Count);
  std::thread second(Count);
  first.join();
  second.join();
  std::printf("counted %d and nobody objected\n", counter);
}
