"""How functions are compiled and cached, and arrays as the compiler should see them."""
