package billing

// Pico is money in pico-USD (10^-12 USD), exact, at most 9.2 million USD.
type Pico int64
