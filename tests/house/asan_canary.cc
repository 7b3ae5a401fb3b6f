// A deliberate read of freed memory, which AddressSanitizer must report.
#include <cstdio>
#include <memory>

int main(int argc, char**) {
  auto owner = std::make_unique<int>(argc);
  const volatile int* dangling = owner.get();
  owner.reset();
  std::printf("read %d and nobody objected\n", *dangling);
}
