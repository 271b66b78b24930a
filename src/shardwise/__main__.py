"""`python -m shardwise`."""

try:
    from shardwise.cli.main import main

    main()
except KeyboardInterrupt:  # before `main` could answer for it
    raise SystemExit(130) from None
